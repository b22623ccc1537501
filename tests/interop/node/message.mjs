// Frames and acks between values and protobuf; the schema comes from a FileDescriptorSet whose path is in WIRE.
import { readFileSync } from "node:fs";
import { create, createFileRegistry, fromBinary, toBinary } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { entry, ids, KINDS, number, table } from "./state.mjs";

const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(process.env.WIRE)));
const Frame = registry.getMessage("otelctx.v1.Frame");
const Ack = registry.getMessage("otelctx.v1.Ack");

export const FRAME = { FULL: 1, DELTA: 2, REF: 3 };
export const HELD = ["NONE", "PROCESS", "SHARED"];
export const REASON = ["NONE", "UNKNOWN_BASE", "ROOT", "LIMIT", "TABLE"];
export const nameOf = (words, number) => Object.keys(words).find((word) => words[word] === number);

/** A word of the receiver's table. */
export class Fault extends Error {}
const malformed = () => new Fault("malformed");
const oversized = () => new Fault("oversized");

export const full = (state) => ({ kind: FRAME.FULL, root: state.root, base: Buffer.of(), put: state.entries, gone: [], table: 1 });
export const ref = (state) => ({ kind: FRAME.REF, root: state.root, base: Buffer.of(), put: [], gone: [], table: 1 });
export const delta = (base, state) => ({
  kind: FRAME.DELTA, root: state.root, base: base.root.subarray(0, 8), table: 1, ...base.diff(state),
});

function valueOf({ kind, raw }) {
  switch (kind) {
    case KINDS.str: return { case: "text", value: raw.toString() };
    case KINDS.int: return { case: "int", value: raw.readBigInt64BE() };
    case KINDS.bool: return { case: "bool", value: raw[0] === 1 };
    case KINDS.float: return { case: "float", value: raw.readDoubleBE() };
    default: return { case: "bytes", value: raw };
  }
}

const written = (item) => ({
  key: ids.has(item.name) ? { case: "id", value: ids.get(item.name) } : { case: "name", value: item.name },
  value: valueOf(item),
});

export function encodeFrame(frame) {
  const made = create(Frame, {
    kind: frame.kind, root: frame.root, base: frame.base, table: frame.table, put: frame.put.map(written),
    delIds: frame.gone.filter((name) => ids.has(name)).map((name) => ids.get(name)),
    delNames: frame.gone.filter((name) => !ids.has(name)),
  });
  return Buffer.from(toBinary(Frame, made));
}

function parse(schema, body) {
  try {
    return fromBinary(schema, body);
  } catch {
    throw malformed();
  }
}

const unique = (names) => new Set(names).size === names.length;

export function decodeFrame(body) {
  const read = parse(Frame, body);
  if (read.put.length > 64 || read.delIds.length + read.delNames.length > 64) throw oversized();
  const baseLength = read.kind === FRAME.DELTA ? 8 : 0;
  if (read.kind < 1 || read.kind > 3 || read.root.length !== 16 || read.base.length !== baseLength || read.table < 1)
    throw malformed();
  const frame = { kind: read.kind, root: Buffer.from(read.root), base: Buffer.from(read.base), table: read.table };
  if (read.table > 1) return { ...frame, put: [], gone: [] };
  const put = readEntries(read.put, 1024);
  const gone = read.delIds.map((id) => table.get(id));
  for (const name of read.delNames) gone.push(literal(name));
  const carries = (frame.kind === FRAME.REF && put.length) || (frame.kind !== FRAME.DELTA && gone.length);
  if (carries || gone.includes(undefined) || !unique([...gone, ...put.map((item) => item.name)])) throw malformed();
  return { ...frame, put, gone: gone.sort() };
}

function literal(name) {
  if (ids.has(name) || !/^[a-z0-9][a-z0-9_./-]{0,63}$/.test(name)) throw malformed();
  return name;
}

function readEntries(messages, limit) {
  const found = messages.map((message) => readEntry(message, limit));
  if (!unique(found.map((item) => item.name))) throw malformed();
  return found;
}

function readEntry({ key, value }, limit) {
  if (key.case === undefined || value.case === undefined) throw malformed();
  const name = key.case === "id" ? table.get(key.value) : literal(key.value);
  if (name === undefined) throw malformed();
  const raw = Buffer.alloc(8);
  switch (value.case) {
    case "int": return number(name, value.value);
    case "bool": return entry(name, KINDS.bool, Buffer.of(value.value ? 1 : 0));
    case "float":
      if (Number.isNaN(value.value)) throw malformed();
      raw.writeDoubleBE(value.value + 0); // minus zero becomes zero
      return entry(name, KINDS.float, raw);
    default: {
      const data = Buffer.from(value.value);
      if (data.length > limit) throw oversized();
      return entry(name, value.case === "text" ? KINDS.str : KINDS.bytes, data);
    }
  }
}

/** The ack shortened to what fits into 512 characters of header: first `moved` goes, then up values from their end. */
export function encodeAck(ack, signed) {
  const room = Math.floor((512 - 2) / 4) * 3 - (signed ? 19 : 0);
  const bytes = (given) => Buffer.from(toBinary(Ack, create(Ack, { ...given, up: given.up.map(written) })));
  let data = bytes(ack);
  while (data.length > room && (ack.moved || ack.up.length)) {
    ack = { ...ack, truncated: true, moved: "", up: ack.moved ? ack.up : ack.up.slice(0, -1) };
    data = bytes(ack);
  }
  return data;
}

export function decodeAck(body) {
  const read = parse(Ack, body);
  if (read.root.length !== 8 || read.table < 1 || read.up.length > 64) throw malformed();
  if (![0, 1].includes(read.kind) || !(read.held in HELD) || !(read.reason in REASON)) throw malformed();
  const { kind, held, bootId, reason, table, final, event, window, moved, truncated } = read;
  const up = readEntries(read.up, 256);
  return { kind, root: Buffer.from(read.root), held, bootId, reason, table, final, event, up, window, moved, truncated };
}
