// A terminal in a task, over the session protocol that docs/explanation/terminals.md describes.
import { backoff_ms } from "./backoff.js";
import { rest } from "./page.js";

const STDIN = 0, STDOUT = 1, STDERR = 2, CONTROL = 3;
const GOT_STEP = 16384;
const INPUT_MAX = 65536;
const encoder = new TextEncoder();
let current = null;

// xterm.js writes style elements, which the policy of the page doesn't allow. It is given stand-ins whose text becomes a
// constructed style sheet, which no text of a job can make.
function standIns(run) {
  const create = document.createElement;
  document.createElement = function (name, ...more) {
    const made = create.call(document, name === "style" ? "x-style" : name, ...more);
    if (name !== "style") return made;
    const sheet = new CSSStyleSheet();
    document.adoptedStyleSheets.push(sheet);
    const write = { get: () => "", set: (text) => sheet.replaceSync(text) };
    Object.defineProperty(made, "textContent", write);
    Object.defineProperty(made, "innerText", write);
    Object.defineProperty(made, "sheet", { get: () => sheet });
    const remove = made.remove;
    made.remove = () => {
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
      remove.call(made);
    };
    return made;
  };
  try {
    return run();
  } finally {
    document.createElement = create;
  }
}

function load(src) {
  return new Promise((done, failed) => {
    if (document.querySelector(`script[src="${src}"]`)) return done();
    const script = document.createElement("script");
    script.src = src;
    script.onload = done;
    script.onerror = () => failed(new Error("the terminal's script can't be had; reload the page"));
    document.head.append(script);
  });
}

export async function openTerminal({ kind, id, rank, command, place, said, scripts }) {
  const say = (text) => (said.textContent = text);
  current?.close();
  try {
    for (const src of scripts) await load(src);
  } catch (fault) {
    say(fault.message);
    return;
  }
  place.hidden = false;
  place.replaceChildren();
  const term = new Terminal({ fontSize: 13, fontFamily: "ui-monospace, Menlo, Consolas, monospace", scrollback: 5000, convertEol: false, screenReaderMode: true, theme: { background: "#0d1319" } });
  const fit = new FitAddon.FitAddon();
  term.loadAddon(fit);
  standIns(() => term.open(place));
  fit.fit();
  term.focus();
  const session = new Session({ kind, id, rank, command, term, say });
  current = session;
  const resized = new ResizeObserver(() => {
    fit.fit();
    session.control({ type: "resize", columns: term.cols, rows: term.rows });
  });
  resized.observe(place);
  session.ended = () => resized.disconnect();
  session.connect();
}

class Session {
  constructor(given) {
    Object.assign(this, given);
    this.name = crypto.randomUUID?.() ?? [...crypto.getRandomValues(new Uint8Array(16))].map((each) => each.toString(16)).join("");
    this.had = 0; // bytes of output
    this.told = 0; // of them acknowledged
    this.sent = 0; // bytes of input
    this.taken = 0; // of them taken by the program
    this.input = new Uint8Array(0); // not yet taken
    this.over = false;
    this.first = true;
    this.tries = 0;
    this.term.onData((text) => this.type(encoder.encode(text)));
    this.term.onBinary((text) => this.type(Uint8Array.from(text, (each) => each.charCodeAt(0))));
  }

  connect() {
    const { kind, id, rank, term } = this;
    const query = new URLSearchParams({ columns: term.cols, rows: term.rows, rank });
    if (kind === "exec") {
      // One word is a program; more of them are a line for a shell.
      const words = /^\S+$/.test(this.command) ? [this.command] : ["sh", "-c", this.command || "bash"];
      query.set("command", JSON.stringify(words));
      query.set("tty", "true");
      query.set("term", "xterm-256color");
      query.set("session", this.name);
    }
    if (!this.first) query.set("at", this.had);
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const path = `/api/v1/jobs/${encodeURIComponent(id)}/${kind}?${query}`;
    this.say("Connecting…");
    const socket = new WebSocket(`${scheme}://${location.host}${path}`, "stoker.session.v1");
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.opened = false;
    socket.onopen = () => (this.opened = true);
    socket.onmessage = (message) => this.hear(new Uint8Array(message.data));
    socket.onclose = async (event) => {
      if (this.over) return;
      if (!this.opened) {
        // A browser doesn't show a script why a handshake was refused; the same request without one is refused alike.
        try {
          await rest("GET", path);
        } catch (fault) {
          if (fault.code && fault.code !== "websocket_wanted") return this.finish(fault.message);
        }
        if (this.first && this.tries > 2) return this.finish("the terminal can't be opened");
      }
      if (event.code === 1008) return this.finish(event.reason || "it was refused");
      const wait_ms = backoff_ms(this.tries++);
      this.say(`The connection was cut; it is tried again in ${Math.round(wait_ms / 100) / 10} s. What runs in the terminal goes on.`);
      setTimeout(() => !this.over && this.connect(), wait_ms);
    };
  }

  hear(data) {
    const content = data.subarray(1);
    if (data[0] === STDOUT || data[0] === STDERR) {
      this.had += content.length;
      // What isn't drawn yet isn't acknowledged: then the program waits, as on any slow terminal.
      this.term.write(content, () => {
        if (this.had - this.told >= GOT_STEP / 2 || this.told < this.had) {
          this.told = this.had;
          this.control({ type: "got", bytes: this.told });
        }
      });
    } else if (data[0] === CONTROL) {
      const told = JSON.parse(new TextDecoder().decode(content));
      if (told.type === "attached") this.attached(told);
      else if (told.type === "taken") {
        this.taken_to(told.bytes);
        this.pump();
      } else if (told.type === "exit") {
        this.control({ type: "done" });
        this.finish(told.error ? told.error : told.signal ? `It ended by signal ${told.signal}.` : `It ended with exit code ${told.code}.`);
      } else if (told.type === "refused") this.finish(told.message);
    }
  }

  attached(told) {
    this.name = told.session?.replace(/^x/, "") || this.name;
    if (this.first || told.at > this.had) this.had = this.told = told.at;
    if (this.first) this.taken = this.sent = told.taken;
    this.first = false;
    this.tries = 0;
    this.taken_to(told.taken);
    this.sent = told.taken;
    this.say("");
    this.pump();
  }

  taken_to(bytes) {
    if (bytes > this.taken) {
      this.input = this.input.slice(bytes - this.taken);
      this.taken = bytes;
    }
  }

  type(bytes) {
    if (this.over) return;
    const joined = new Uint8Array(this.input.length + bytes.length);
    joined.set(this.input);
    joined.set(bytes, this.input.length);
    this.input = joined.slice(0, 1 << 20);
    this.pump();
  }

  pump() {
    if (this.socket.readyState !== WebSocket.OPEN || this.first) return;
    const from = this.sent - this.taken;
    const part = this.input.slice(from, Math.max(from, INPUT_MAX));
    if (!part.length) return;
    this.sent += part.length;
    this.send(STDIN, part);
  }

  control(fields) {
    this.send(CONTROL, encoder.encode(JSON.stringify(fields)));
  }

  send(channel, content) {
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    const message = new Uint8Array(content.length + 1);
    message[0] = channel;
    message.set(content, 1);
    this.socket.send(message);
  }

  finish(text) {
    this.over = true;
    this.ended?.();
    this.say(text);
    this.term.write(`\r\n\x1b[2m[${text.replace(/[^\x20-\x7e\u00a0-\uffff]/g, "")}]\x1b[0m\r\n`);
    this.socket?.close();
  }

  close() {
    if (!this.over && this.kind === "attach") this.control({ type: "detach" });
    else if (!this.over) this.control({ type: "hangup" });
    this.over = true;
    this.ended?.();
    this.socket?.close();
    this.term.dispose();
  }
}
