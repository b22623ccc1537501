// Entries, frames and acks as the recordings write them.
import { FRAME, HELD, REASON } from "./message.mjs";
import { entry, KINDS, number, State, text } from "./state.mjs";
import { Key } from "./trailer.mjs";

export const hex = (data) => Buffer.from(data).toString("hex");
export const unhex = (digits) => Buffer.from(digits, "hex");

export function entryOf({ key, type, value }) {
  if (type === "str") return text(key, value);
  if (type === "int") return number(key, value);
  if (type === "bool") return entry(key, KINDS.bool, Buffer.of(value ? 1 : 0));
  return entry(key, KINDS[type], unhex(value));
}

export const stateOf = (forms) => new State((forms ?? []).map(entryOf));
export const keysOf = (forms) => forms.map((form) => new Key(form.id, form.domain, unhex(form.master)));

export const frameOf = (form) => ({
  kind: FRAME[form.kind], root: unhex(form.root), base: unhex(form.base), put: form.put.map(entryOf), gone: form.delete,
  table: form.table,
});

export const ackOf = (form) => ({
  kind: form.kind === "NACK" ? 1 : 0, root: unhex(form.root), held: HELD.indexOf(form.held), bootId: form.boot_id,
  reason: REASON.indexOf(form.reason), table: form.table, final: form.final, event: BigInt(form.event),
  up: form.up.map(entryOf), moved: form.moved, truncated: form.truncated,
  ...(form.window && {
    window: { ...form.window, evicted: BigInt(form.window.evicted), version: BigInt(form.window.version) },
  }),
});

/** Text in which two frames or acks are the same if they are. */
export const plain = (value) =>
  JSON.stringify(value, (key, found) => {
    if (key.startsWith("$")) return undefined;
    if (typeof found === "bigint") return String(found);
    if (found?.type === "Buffer") return Buffer.from(found.data).toString("hex");
    if (found && !Array.isArray(found) && typeof found === "object")
      return Object.fromEntries(Object.entries(found).sort(([a], [b]) => (a < b ? -1 : 1)));
    return found;
  });
