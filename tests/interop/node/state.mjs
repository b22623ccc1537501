// Entries, leaves and roots, as docs/wire-format.md says, with nothing of the Python implementation.
import { createHash } from "node:crypto";

export const KINDS = { str: 1, int: 2, bool: 3, float: 4, bytes: 5 };
const INCOMPLETE = "otelctx.incomplete";
const SESSION = "session.id";

const NAMES = {
  1: SESSION, 2: "tenant.id", 3: "user.id", 4: "gen_ai.conversation.id", 5: "gen_ai.request.model",
  6: "gen_ai.agent.id", 7: "gen_ai.agent.name", 8: "deployment.environment.name", 9: "cloud.region",
  10: "service.origin", 11: "client.locale", 12: "user.tier", 13: "feature.flags", 14: "request.priority",
  15: "limit.tokens.total", 16: "limit.tokens.output", 17: "prompt.version", 18: "canary.arm", 19: "debug.sample",
  20: INCOMPLETE, 21: "policy.id", 32: "usage.tokens.input", 33: "usage.tokens.output", 34: "session.turn",
  35: "window.overflowed", 36: "window.truncated",
};
export const table = new Map(Object.entries(NAMES).map(([id, name]) => [Number(id), name]));
export const ids = new Map([...table].map(([id, name]) => [name, id]));

export const same = (one, other) => Buffer.compare(one, other) === 0;

function u16(length) {
  const data = Buffer.alloc(2);
  data.writeUInt16BE(length);
  return data;
}

const sha = (data) => createHash("sha256").update(data).digest().subarray(0, 16);

/** An entry has its value in canonical bytes, which are all that two implementations compare. */
export function entry(name, kind, raw) {
  const label = Buffer.from(name);
  return { name, kind, raw, leaf: sha(Buffer.concat([u16(label.length), label, Buffer.of(kind), u16(raw.length), raw])) };
}

export const text = (name, value) => entry(name, KINDS.str, Buffer.from(value));

export function number(name, value) {
  const raw = Buffer.alloc(8);
  raw.writeBigInt64BE(BigInt(value));
  return entry(name, KINDS.int, raw);
}

const varint = (value) => Math.max(1, Math.ceil(value.toString(2).length / 7));

/** Bytes of an entry in `put`, tag and length included. */
function size({ name, kind, raw }) {
  const key = ids.has(name) ? 2 : 1 + varint(name.length) + name.length;
  let body = 9;
  if (kind === KINDS.bool) body = 2;
  else if (kind === KINDS.int) {
    const value = raw.readBigInt64BE();
    body = 1 + varint(BigInt.asUintN(64, (value << 1n) ^ (value >> 63n)));
  } else if (kind !== KINDS.float) body = 1 + varint(raw.length) + raw.length;
  return 1 + varint(key + body) + key + body;
}

/** An immutable map by name, sorted. */
export class State {
  constructor(entries = []) {
    this.map = new Map(entries.map((item) => [item.name, item]));
    this.entries = [...this.map.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
    this.root = this.entries.length ? sha(Buffer.concat(this.entries.map((item) => item.leaf))) : Buffer.alloc(16);
  }

  get hasSession() {
    return this.map.get(SESSION)?.kind === KINDS.str;
  }

  get size() {
    const mark = this.map.has(INCOMPLETE) ? 0 : 6;
    return this.entries.reduce((sum, item) => sum + size(item), 22 + 19 + mark);
  }

  get within() {
    return this.entries.length - this.map.has(INCOMPLETE) < 64 && this.size <= 2900;
  }

  apply(put, gone) {
    const kept = this.entries.filter((item) => !gone.includes(item.name));
    return new State([...kept, ...put]);
  }

  diff(target) {
    return {
      put: target.entries.filter((item) => !this.map.has(item.name) || !same(this.map.get(item.name).leaf, item.leaf)),
      gone: this.entries.map((item) => item.name).filter((name) => !target.map.has(name)),
    };
  }
}
