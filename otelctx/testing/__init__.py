"""What users' own tests need: ``capture()``, the pytest fixture ``otelctx_capture``, an in-process OTLP receiver."""
