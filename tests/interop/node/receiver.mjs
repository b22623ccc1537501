// The receiver's table, and what a sender believes of an ack.
import { decodeAck, decodeFrame, Fault, FRAME, REASON } from "./message.mjs";
import { same, State } from "./state.mjs";
import { fromHeader, splitMAC, verify } from "./trailer.mjs";

/** Holds bases by domain and the first 8 bytes of their root, for ever: a real one gives some up. */
export class Receiver {
  constructor(keys, { trusted = false, proceed = false } = {}) {
    Object.assign(this, { keys, trusted, proceed, bases: new Map() });
  }

  keep(domain, state) {
    if (!state.hasSession) return "NONE";
    this.bases.set(`${domain}\0${state.root.toString("hex", 0, 8)}`, state);
    return "PROCESS";
  }

  open(lines, now) {
    if (lines.length !== 1) return { word: "ignored", reason: "repeated" };
    try {
      const { body, mac } = splitMAC(fromHeader(lines[0]));
      if (mac === null && !this.trusted) return { word: "ignored", reason: "untrusted" };
      const domain = mac === null ? "" : verify(this.keys, ">", body, mac, now);
      if (domain === null) return { word: "ignored", reason: "mac" };
      const frame = decodeFrame(body);
      const { kind, root } = frame;
      return { kind, root, domain, signed: mac !== null, ...this.accept(frame, domain) };
    } catch (error) {
      if (error instanceof Fault) return { word: "ignored", reason: error.message };
      throw error;
    }
  }

  accept(frame, domain) {
    if (frame.table > 1) return { word: "run", reason: "TABLE" };
    const unreadable = (reason) => ({ word: frame.kind === FRAME.FULL || this.proceed ? "run" : "refuse", reason });
    let base = new State();
    if (frame.kind !== FRAME.FULL) {
      const wanted = frame.kind === FRAME.REF ? frame.root : frame.base;
      base = this.bases.get(`${domain}\0${wanted.toString("hex", 0, 8)}`);
      if (base === undefined) return unreadable("UNKNOWN_BASE");
    }
    const state = base.apply(frame.put, frame.gone);
    if (!state.within) return { word: "run", reason: "LIMIT" };
    if (!same(state.root, frame.root)) return unreadable("ROOT");
    return { word: "accepted", reason: "", state, held: this.keep(domain, state) };
  }
}

/** The ack of an outcome, without what the application adds; null for what is ignored. */
export function answer(outcome, bootId) {
  if (outcome.word === "ignored") return null;
  const ack = { root: outcome.root.subarray(0, 8), bootId, table: 1, up: [], moved: "" };
  if (outcome.word === "accepted") return { ...ack, held: outcome.held === "PROCESS" ? 1 : 0 };
  return { ...ack, kind: 1, reason: REASON.indexOf(outcome.reason), final: true };
}

/** The ack in these lines, or null if it is to be ignored: not signed by one of the keys, or of another frame. */
export function readAck(lines, root, keys, now) {
  if (lines.length !== 1 || lines[0].length > 512) return null;
  try {
    const { body, mac } = splitMAC(fromHeader(lines[0]));
    if ((mac !== null) !== keys.length > 0) return null;
    if (mac !== null && verify(keys, "<", body, mac, now) === null) return null;
    const ack = decodeAck(body);
    return same(ack.root, root.subarray(0, 8)) ? ack : null;
  } catch (error) {
    if (error instanceof Fault) return null;
    throw error;
  }
}
