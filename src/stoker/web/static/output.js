// Output of a task as it comes: ANSI colours, a bound on what the page keeps, a search in what is there.
// It is read by its place in bytes, answer by answer, so that a cut connection, a page that was hidden or a control plane
// that was away go on where they were. Text becomes text nodes, never marks, so whatever a job writes stays text.
import { backoff_ms } from "./backoff.js";

const LINES_MAX = 20000; // lines kept; older ones are dropped from the page, and said so
const BLOCK = 200; // lines of one element, so that a browser lays out only those in sight
const TAIL_BYTES = 1048576; // of an output that is there already
const BEHIND_BYTES_MAX = 8 * TAIL_BYTES; // of an output that comes faster than it is drawn; then the tail is shown, and said so
const RANKS_MAX = 64; // shown together; of more the first ones
const RANK_TAIL_BYTES = 65536; // of each rank's output that is there already, when all are shown
const PIECE_BYTES = 262144; // of one answer
const LINE_MAX = 8192; // characters of one line; the rest of it begins another
const WAIT_S = 20; // of one answer for more
const ANSWER_MS_MAX = 60000; // a connection that died while the machine slept tells nobody
const PACE_MS = 250; // between two answers of little
const PASSING = ["rate_limited", "not_active", "not_started", "node_unreachable", "too_many_streams"];

export const bytesIn = (count) => (count < 1024 ? `${count} B` : count < 1048576 ? `${(count / 1024).toFixed(1)} KiB` : `${(count / 1048576).toFixed(1)} MiB`);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// Where the page is in the output of one rank.
class Place {
  constructor(rank, attempt, tail) {
    Object.assign(this, { rank, attempt, offset: `-${tail}`, size: 0, rest: "", cut: false, ended: false, decoder: new TextDecoder() });
  }

  next(attempt) {
    Object.assign(this, { attempt, offset: "0", size: 0, rest: "", cut: false, ended: false, decoder: new TextDecoder() });
  }
}

export class Output {
  constructor(log, about) {
    Object.assign(this, { log, about, following: true, wanted: "", attempts: 0, ranks: 1 });
    this.reset();
    document.addEventListener("visibilitychange", () => {
      // A hidden page asks for nothing; what came meanwhile is read when it is looked at.
      if (document.hidden) this.stop?.abort();
      else if (this.id) this.read();
    });
    document.addEventListener("back", () => this.id && !document.hidden && this.read());
    log.addEventListener("scroll", () => this.pinned(), { passive: true });
  }

  reset() {
    this.log.replaceChildren();
    this.block = null;
    this.lines = 0;
    this.dropped = 0;
    this.bytes = 0;
    this.places = new Map();
    this.style = {};
    this.styles = new Map(); // of each rank: its colours go on where its last line ended
    this.waiting = [];
    this.drawing = false;
    this.bottom = true;
    this.top = 0;
  }

  pinned() {
    // Whoever goes up stays there; what grows below somebody who is at the end doesn't count.
    const { scrollTop, scrollHeight, clientHeight } = this.log;
    if (scrollHeight - scrollTop - clientHeight < 40) this.bottom = true;
    else if (scrollTop < this.top - 2) this.bottom = false;
    this.top = scrollTop;
  }

  toEnd(frames = 3) {
    // Lines get their height once they are in sight, which is a frame later.
    if (!this.following || !this.bottom) return;
    this.log.scrollTop = this.log.scrollHeight;
    if (frames) requestAnimationFrame(() => this.toEnd(frames - 1));
  }

  follow(on) {
    this.following = on;
    this.bottom = on;
    this.toEnd();
  }

  say(text) {
    this.about.textContent = text;
  }

  open(id, { rank, attempt }) {
    Object.assign(this, { id, rank, attempt });
    this.reset();
    this.say("Reading…");
    this.read();
  }

  // What is known of the job by now: another attempt may have begun.
  know({ attempts, ranks }) {
    const more = attempts > this.attempts;
    Object.assign(this, { attempts, ranks });
    if (more && this.id && !this.reading && !document.hidden) this.read();
  }

  async read() {
    this.stop?.abort();
    const { signal } = (this.stop = new AbortController());
    const all = this.rank === "all";
    let tries = 0;
    this.reading = true;
    while (!signal.aborted) {
      const ranks = all ? [...Array(Math.min(this.ranks, RANKS_MAX)).keys()] : [Number(this.rank) || 0];
      let open = 0, busy = false;
      for (const rank of ranks) {
        const place = this.places.get(rank) ?? new Place(rank, this.attempt, all ? RANK_TAIL_BYTES : TAIL_BYTES);
        this.places.set(rank, place);
        if (place.ended && !this.attempt && this.attempts > place.attempt) {
          place.next(place.attempt + 1);
          this.push(rank, `[stoker: attempt ${place.attempt}]`);
        }
        if (place.ended) continue;
        open += 1;
        const got = await this.answer(place, all ? 0 : WAIT_S, signal);
        if (signal.aborted) return;
        if (got === null) return (this.reading = false);
        if (got < 0) {
          await pause(backoff_ms(tries++));
          continue;
        }
        tries = 0;
        busy ||= got >= PIECE_BYTES / 2;
        this.draw();
        if (all) await pause(50);
        // What the page can't draw yet isn't read either: the rest waits where it is.
        while (this.waiting.length > LINES_MAX && !signal.aborted) await pause(50);
      }
      if (!open) {
        this.reading = false;
        return this.tell("It has ended.");
      }
      if (!busy) await pause(all ? 900 : PACE_MS);
    }
  }

  // How many bytes came; below 0 = nothing can be had now; null = nothing ever will, and why was said.
  async answer(place, wait_s, signal) {
    const query = new URLSearchParams({ rank: place.rank, offset: place.offset, limit: PIECE_BYTES });
    if (place.attempt) query.set("attempt", place.attempt);
    if (wait_s && !place.offset.startsWith("-")) query.set("wait_s", wait_s);
    const late = new AbortController();
    const stop = () => late.abort();
    const timer = setTimeout(stop, ANSWER_MS_MAX);
    signal.addEventListener("abort", stop);
    try {
      const told = await fetch(`/api/v1/jobs/${encodeURIComponent(this.id)}/logs?${query}`, { signal: late.signal });
      if (!told.ok) return this.refused(place, told.status, await told.json().catch(() => ({})));
      const bytes = new Uint8Array(await told.arrayBuffer());
      if (signal.aborted) return -1;
      const header = (name) => told.headers.get(`X-Stoker-Log-${name}`);
      this.take(place, bytes, Number(header("Offset")), Number(header("Size")));
      place.attempt = Number(header("Attempt"));
      place.ended = header("Ended") === "true" && Number(place.offset) >= place.size;
      if (place.ended && place.rest) {
        this.push(place.rank, place.rest);
        place.rest = "";
      }
      if (!this.lines && !this.waiting.length) this.say("It has written nothing yet.");
      return bytes.length;
    } catch {
      if (!signal.aborted) this.tell("The connection was cut; it is tried again, and goes on from there.");
      return -1;
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", stop);
    }
  }

  refused(place, status, problem) {
    if (status === 401) {
      this.tell("Your session is over: sign in, and it goes on.");
      return null;
    }
    const passing = PASSING.includes(problem.code) || status === 429 || status >= 500;
    const which = this.rank === "all" && place.rank ? `Rank ${place.rank}: ` : "";
    const said = problem.message ? `${which}${problem.message}. ${problem.hint}` : `${which}refused with status ${status}`;
    if (problem.code !== "rate_limited") this.lines ? this.tell(said) : this.say(said);
    return passing ? -1 : null;
  }

  take(place, bytes, offset, size) {
    const first = place.offset.startsWith("-");
    // Where it doesn't begin at a beginning, or bytes between are gone, the rest of a line is no line.
    if (first ? offset > 0 : offset > Number(place.offset)) {
      place.cut = true;
      if (!first) {
        this.push(place.rank, `[stoker: ${bytesIn(offset - Number(place.offset))} are missing here]`);
        place.rest = "";
      }
    }
    Object.assign(place, { offset: `${offset + bytes.length}`, size });
    this.bytes += bytes.length;
    const lines = (place.rest + place.decoder.decode(bytes, { stream: true })).split("\n");
    place.rest = lines.pop();
    if (place.cut && lines.length) {
      lines.shift();
      place.cut = false;
    }
    while (place.rest.length > LINE_MAX) {
      lines.push(place.rest.slice(0, LINE_MAX));
      place.rest = place.rest.slice(LINE_MAX);
    }
    for (const line of lines) this.push(place.rank, line);
    if (size - Number(place.offset) > BEHIND_BYTES_MAX) {
      const next = size - TAIL_BYTES;
      this.push(place.rank, `[stoker: ${bytesIn(next - Number(place.offset))} are left out here, since they came faster than they can be shown]`);
      Object.assign(place, { offset: `${next}`, rest: "", cut: true, decoder: new TextDecoder() });
    }
  }

  push(rank, line) {
    const shown = this.rank === "all" ? rank : "";
    for (let at = 0; at === 0 || at < line.length; at += LINE_MAX) this.waiting.push([shown, line.slice(at, at + LINE_MAX)]);
  }

  draw() {
    if (this.drawing || !this.waiting.length) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      if (this.waiting.length > LINES_MAX) this.dropped += this.waiting.splice(0, this.waiting.length - LINES_MAX).length;
      const until = performance.now() + 12;
      while (this.waiting.length && performance.now() < until) for (const line of this.waiting.splice(0, 50)) this.add(line);
      while (this.lines > LINES_MAX + BLOCK) {
        const first = this.log.firstElementChild;
        const { scrollTop } = this.log;
        const height = this.bottom ? 0 : first.offsetHeight;
        this.lines -= first.childElementCount;
        this.dropped += first.childElementCount;
        first.remove();
        if (height) this.log.scrollTop = scrollTop - height; // who reads further up keeps the place
      }
      this.toEnd();
      this.tell(this.waiting.length ? `${this.waiting.length} lines to draw` : "");
      this.draw();
    });
  }

  tell(more) {
    const places = [...this.places.values()];
    const whole = places.length === 1 ? places[0].size : 0;
    const part = whole > this.bytes ? `, ${bytesIn(this.bytes)} of ${bytesIn(whole)}` : `, ${bytesIn(this.bytes)}`;
    const dropped = this.dropped ? ` ${this.dropped.toLocaleString()} earlier lines aren't kept here.` : "";
    this.say(`${this.lines.toLocaleString()} line${this.lines === 1 ? "" : "s"}${part}.${dropped} ${more}`);
  }

  add([rank, line]) {
    if (!this.block || this.block.childElementCount >= BLOCK) {
      this.block = document.createElement("div");
      this.log.append(this.block);
    }
    const row = document.createElement("span");
    if (line.startsWith("[stoker: ")) row.className = "note-line";
    if (rank !== "") {
      const mark = document.createElement("span");
      mark.className = `rank a-f${(rank % 6) + 1}`;
      mark.textContent = `${rank} `.padStart(4);
      row.append(mark);
    }
    this.style = this.styles.get(rank) ?? {};
    // Of a line that a program draws over itself the last state counts, as on a terminal.
    const shown = line.endsWith("\r") ? line.slice(0, -1) : line;
    this.paint(row, shown.slice(shown.lastIndexOf("\r") + 1));
    this.styles.set(rank, this.style);
    row.append("\n");
    this.block.append(row);
    this.lines += 1;
    if (this.wanted) row.hidden = !row.textContent.toLowerCase().includes(this.wanted);
  }

  paint(row, line) {
    let at = 0;
    for (const match of line.matchAll(/\x1b(?:\[([0-9;:?]*)([A-Za-z])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78cMDEH])/g)) {
      this.text(row, line.slice(at, match.index));
      at = match.index + match[0].length;
      if (match[2] === "m") this.colour(match[1]);
    }
    this.text(row, line.slice(at));
  }

  text(row, text) {
    const clean = text.replace(/[\x00-\x08\x0b-\x1f\x7f]/g, "");
    if (!clean) return;
    const names = Object.values(this.style).filter(Boolean);
    if (!names.length) row.append(clean);
    else {
      const part = document.createElement("span");
      part.className = names.join(" ");
      part.textContent = clean;
      row.append(part);
    }
  }

  colour(codes) {
    const list = (codes || "0").split(/[;:]/).map(Number);
    for (let at = 0; at < list.length; at += 1) {
      const code = list[at];
      if (code === 0) this.style = {};
      else if (code === 1) this.style.bold = "a-b";
      else if (code === 2) this.style.dim = "a-d";
      else if (code === 3) this.style.italic = "a-i";
      else if (code === 4) this.style.under = "a-u";
      else if (code === 22) this.style.bold = this.style.dim = "";
      else if (code === 23) this.style.italic = "";
      else if (code === 24) this.style.under = "";
      else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) this.style.front = `a-f${code % 10}`;
      else if ((code >= 40 && code <= 47) || (code >= 100 && code <= 107)) this.style.back = `a-g${code % 10}`;
      else if (code === 39) this.style.front = "";
      else if (code === 49) this.style.back = "";
      else if (code === 38 || code === 48) {
        const name = code === 38 ? ["front", "a-f"] : ["back", "a-g"];
        if (list[at + 1] === 5) {
          this.style[name[0]] = name[1] + nearest256(list[at + 2]);
          at += 2;
        } else if (list[at + 1] === 2) {
          this.style[name[0]] = name[1] + nearest(list[at + 2], list[at + 3], list[at + 4]);
          at += 4;
        }
      }
    }
  }

  find(text) {
    this.wanted = text.toLowerCase();
    for (const block of this.log.children) for (const row of block.children) row.hidden = Boolean(this.wanted) && !row.textContent.toLowerCase().includes(this.wanted);
  }
}

function nearest(r, g, b) {
  // Which of the eight colours: one bit for each of red, green and blue.
  const most = Math.max(r, g, b, 1);
  if (most < 40) return 0;
  return (r > most / 2 ? 1 : 0) | (g > most / 2 ? 2 : 0) | (b > most / 2 ? 4 : 0);
}

function nearest256(code) {
  if (code < 16) return code % 8;
  if (code >= 232) return code > 243 ? 7 : 0;
  const at = code - 16;
  return nearest(Math.floor(at / 36) * 51, (Math.floor(at / 6) % 6) * 51, (at % 6) * 51);
}
