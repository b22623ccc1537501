// Reads the recordings, and says in one line of JSON how many of them agree, by file, and which do not.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { ackOf, entryOf, frameOf, hex, keysOf, plain, stateOf, unhex } from "./forms.mjs";
import { decodeAck, decodeFrame, delta, encodeAck, encodeFrame, FRAME, full, nameOf, ref } from "./message.mjs";
import { readAck, Receiver } from "./receiver.mjs";
import { fromHeader, splitMAC, verify } from "./trailer.mjs";

const report = { agreed: {}, differs: [], same_bytes: 0, bodies: 0 };

function expect(good, file, name, ...facts) {
  if (good) report.agreed[file] = (report.agreed[file] ?? 0) + 1;
  else report.differs.push(`${file}: ${name}: ${facts.map(String).join(" ")}`);
}

function body(mine, recorded) {
  report.bodies++;
  if (hex(mine) === recorded) report.same_bytes++;
}

function states({ states }) {
  for (const recorded of states) {
    const state = stateOf(recorded.entries);
    const entries = recorded.entries.every((form) => {
      const item = entryOf(form);
      return hex(item.raw) === form.canonical && hex(item.leaf) === form.leaf;
    });
    const good = entries && hex(state.root) === recorded.root && state.size === recorded.full_size;
    expect(good, "states", recorded.name, hex(state.root), state.size);
  }
}

function frames({ keys: forms, time, frames }) {
  const keys = keysOf(forms);
  for (const recorded of frames) {
    const [base, state] = [stateOf(recorded.base_state), stateOf(recorded.state)];
    const made = { FULL: () => full(state), REF: () => ref(state), DELTA: () => delta(base, state) }[recorded.frame.kind]();
    const mine = encodeFrame(made);
    body(mine, recorded.body);
    const read = splitMAC(fromHeader(recorded.header));
    const frame = decodeFrame(read.body);
    const wanted = plain(frameOf(recorded.frame));
    const signer = keys.find(({ id }) => id === recorded.signed_by);
    const good =
      [made, decodeFrame(mine), frame].every((found) => plain(found) === wanted) &&
      hex(read.body) === recorded.body &&
      hex(base.apply(frame.put, frame.gone).root) === recorded.frame.root &&
      (signer
        ? verify(keys, ">", read.body, read.mac, time) === signer.domain &&
          hex(signer.trailer(">", read.body, time)) === recorded.trailer
        : read.mac === null);
    expect(good, "frames", recorded.name);
  }
}

function acks({ keys: forms, time, acks, shortened, ignored }) {
  const keys = keysOf(forms);
  for (const recorded of acks) {
    const made = ackOf(recorded.ack);
    const mine = encodeAck(made, recorded.signed);
    body(mine, recorded.body);
    const read = readAck([recorded.header], made.root, recorded.signed ? keys : [], time);
    const good =
      read !== null &&
      plain(read) === plain({ ...decodeAck(mine) }) &&
      hex(encodeAck(read, recorded.signed)) === hex(mine) &&
      hex(recorded.signed ? keys[0].trailer("<", unhex(recorded.body), time) : "") === recorded.trailer;
    expect(good, "acks", recorded.name);
  }
  for (const recorded of shortened) {
    const mine = encodeAck(ackOf(recorded.given), recorded.signed);
    body(mine, recorded.body);
    const read = decodeAck(mine);
    expect(read.truncated && read.up.length === recorded.kept, "acks", recorded.name, read.up.length);
  }
  for (const recorded of ignored)
    expect(readAck(recorded.lines, unhex(recorded.root), keys, time) === null, "acks", recorded.name);
}

function macs({ keys: forms, macs, accepted }) {
  const keys = keysOf(forms);
  for (const recorded of macs) {
    const key = keys.find(({ id }) => id === recorded.key);
    const data = unhex(recorded.body);
    const good =
      hex(key.hourKey(recorded.hour)) === recorded.hour_key &&
      hex(key.input(recorded.direction, data)) === recorded.input &&
      hex(key.trailer(recorded.direction, data, recorded.time)) === recorded.trailer;
    expect(good, "macs", recorded.trailer);
  }
  for (const recorded of accepted) {
    const domain = verify(keys, recorded.direction, unhex(recorded.body), unhex(recorded.mac), recorded.time);
    expect(domain === recorded.domain, "macs", recorded.name, domain);
  }
}

function headers({ headers }) {
  for (const recorded of headers) {
    let [data, reason] = [null, null];
    try {
      if (recorded.lines.length === 1) data = hex(fromHeader(recorded.lines[0]));
      else reason = new Receiver([]).open(recorded.lines, 0).reason;
    } catch (error) {
      reason = error.message;
    }
    expect(data === recorded.bytes && reason === recorded.reason, "headers", recorded.name, data, reason);
  }
}

function agrees(outcome, wanted) {
  if (outcome.word !== wanted.outcome || (outcome.reason || undefined) !== wanted.reason) return false;
  if (outcome.word === "ignored") return true;
  if (nameOf(FRAME, outcome.kind) !== wanted.kind || hex(outcome.root) !== wanted.root) return false;
  return outcome.word !== "accepted" || (outcome.domain === wanted.domain && outcome.held === wanted.held);
}

function outcomes({ keys, time, held, cases }) {
  for (const recorded of cases) {
    const options = { trusted: recorded.trusted, proceed: recorded.on_unknown_base === "proceed" };
    const receiver = new Receiver(keysOf(keys), options);
    for (const base of held) receiver.keep(base.domain, stateOf(base.state));
    const outcome = receiver.open(recorded.lines, time);
    expect(agrees(outcome, recorded), "outcomes", recorded.name, outcome.word, outcome.reason, outcome.held);
  }
}

/** The receiver that a worker is: a new one where the recorded one had lost its bases, one for all that share them. */
function meet(receivers, keys, { worker, outcome }) {
  const name = outcome.held === "SHARED" ? "shared" : worker;
  if (!receivers.has(name) || outcome.reason === "UNKNOWN_BASE") receivers.set(name, new Receiver(keys));
  receivers.get(name).proceed = outcome.outcome === "run";
  return receivers.get(name);
}

function conversations({ keys: forms, time, conversations }) {
  const keys = keysOf(forms);
  for (const { name, exchanges } of conversations) {
    const receivers = new Map();
    for (const step of exchanges) {
      const state = stateOf(step.state);
      let good = (step.frame === null) === (step.sends === "none");
      if (step.outcome !== null) {
        const outcome = meet(receivers, keys, step).open([step.frame], time + step.at);
        if (step.outcome.held === "SHARED" && outcome.held === "PROCESS") outcome.held = "SHARED";
        good &&= agrees(outcome, step.outcome) && nameOf(FRAME, outcome.kind) === step.sends;
        if (outcome.word === "accepted") good &&= hex(outcome.state.root) === hex(state.root);
      }
      if (step.ack !== null) {
        const another = name === "an ack of another exchange" && step.sends === "DELTA";
        good &&= (readAck([step.ack], state.root, keys, time + step.at) === null) === another;
      }
      expect(good, "conversations", name, step.at, step.sends);
    }
  }
}

export function check(folder) {
  for (const read of [states, frames, acks, macs, headers, outcomes, conversations])
    read(JSON.parse(readFileSync(join(folder, `${read.name}.json`))));
  console.log(JSON.stringify(report));
  process.exitCode = Math.min(report.differs.length, 1);
}
