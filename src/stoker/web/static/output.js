// Output of a task as it comes: ANSI colours, a bound on what the page keeps, a search in what is there.
// Text becomes text nodes, never marks, so whatever a job writes stays text.
const LINES_MAX = 20000; // lines kept; older ones are dropped from the page, and said so
const BLOCK = 200; // lines of one element, so that a browser lays out only those in sight
const TAIL_BYTES = 1048576; // of an output that is there already
const RANKS_MAX = 64; // shown together; of more the first ones
const RANK_TAIL_BYTES = 65536; // of each rank's output that is there already, when all are shown
const LINE_MAX = 8192; // characters of one line; the rest of it begins another

export class Output {
  constructor(log, about) {
    Object.assign(this, { log, about, following: true, wanted: "" });
    this.reset();
    document.addEventListener("visibilitychange", () => {
      // A hidden page keeps no connection; what came meanwhile is read when it is looked at.
      if (document.hidden) this.stop?.abort();
      else if (this.id) this.open(this.id, this.query);
    });
    log.addEventListener("wheel", () => this.pinned(), { passive: true });
    log.addEventListener("keydown", () => this.pinned());
    log.addEventListener("scroll", () => this.pinned(), { passive: true });
  }

  reset() {
    this.log.replaceChildren();
    this.block = null;
    this.lines = 0;
    this.dropped = 0;
    this.bytes = 0;
    this.rest = "";
    this.style = {};
    this.styles = new Map(); // of each rank: its colours go on where its last line ended
    this.waiting = [];
    this.drawing = false;
    this.bottom = true;
  }

  pinned() {
    const { log } = this;
    this.bottom = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  }

  follow(on) {
    this.following = on;
    this.bottom = on;
    if (on) this.log.scrollTop = this.log.scrollHeight;
  }

  say(text) {
    this.about.textContent = text;
  }

  async open(id, query) {
    Object.assign(this, { id, query });
    this.stop?.abort();
    const stop = (this.stop = new AbortController());
    this.reset();
    this.say("Reading…");
    if (query.get("rank") === "all") return this.openAll(id, query, stop.signal);
    const path = `/api/v1/jobs/${encodeURIComponent(id)}/logs?${query}&follow=true&offset=-${TAIL_BYTES}`;
    try {
      const answer = await fetch(path, { signal: stop.signal });
      if (!answer.ok) {
        const problem = await answer.json().catch(() => ({}));
        this.say(problem.message ? `${problem.message}. ${problem.hint}` : `refused with status ${answer.status}`);
        return;
      }
      const decoder = new TextDecoder();
      const reader = answer.body.getReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        this.bytes += value.length;
        this.take(decoder.decode(value, { stream: true }));
        // What the page can't draw yet isn't read either: the rest waits at the control plane.
        while (this.waiting.length > 2 * LINES_MAX && !stop.signal.aborted) await new Promise((next) => requestAnimationFrame(next));
      }
      this.take(decoder.decode() + (this.rest ? "\n" : ""));
      this.over = true;
      this.tell("Its output has ended.");
    } catch (fault) {
      if (stop.signal.aborted) return;
      this.tell("The connection was cut; it is tried again.");
      setTimeout(() => !stop.signal.aborted && !document.hidden && this.open(id, query), 2000);
    }
  }

  async openAll(id, query, signal) {
    // All ranks by turns, each from where it was: a stream for each would leave no connection for the page.
    const from = new Map();
    const wait = (ms) => new Promise((done) => setTimeout(done, ms));
    const attempt = query.get("attempt") ? `&attempt=${query.get("attempt")}` : "";
    while (!signal.aborted) {
      let ended = 0;
      for (let rank = 0; rank < Math.min(this.ranks, RANKS_MAX) && !signal.aborted; rank += 1) {
        const state = from.get(rank) ?? { offset: `-${RANK_TAIL_BYTES}`, rest: "", ended: false };
        from.set(rank, state);
        if (state.ended) {
          ended += 1;
          continue;
        }
        try {
          const answer = await fetch(`/api/v1/jobs/${encodeURIComponent(id)}/logs?rank=${rank}&offset=${state.offset}&limit=1048576${attempt}`, { signal });
          if (!answer.ok) {
            const problem = await answer.json().catch(() => ({}));
            if (problem.code !== "not_started" && problem.code !== "rate_limited") this.say(`Rank ${rank}: ${problem.message ?? `refused with status ${answer.status}`}`);
            await wait(500);
            continue;
          }
          const bytes = new Uint8Array(await answer.arrayBuffer());
          const first = state.offset[0] === "-";
          state.offset = `${Number(answer.headers.get("X-Stoker-Log-Offset")) + bytes.length}`;
          state.ended = answer.headers.get("X-Stoker-Log-Ended") === "true" && state.offset === answer.headers.get("X-Stoker-Log-Size");
          this.bytes += bytes.length;
          state.decoder ??= new TextDecoder();
          const lines = (state.rest + state.decoder.decode(bytes, { stream: true })).split("\n");
          state.rest = lines.pop();
          if (first && answer.headers.get("X-Stoker-Log-Offset") !== "0") lines.shift();
          if (state.ended && state.rest) lines.push(state.rest);
          for (const line of lines) this.waiting.push([rank, line.slice(0, LINE_MAX)]);
        } catch {
          if (signal.aborted) return;
        }
        this.draw();
        await wait(100);
      }
      if (ended === Math.min(this.ranks, RANKS_MAX)) return this.tell("Its output has ended.");
      await wait(900);
    }
  }

  take(text) {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop();
    while (this.rest.length > LINE_MAX) {
      lines.push(this.rest.slice(0, LINE_MAX));
      this.rest = this.rest.slice(LINE_MAX);
    }
    for (const line of lines) {
      for (let at = 0; at === 0 || at < line.length; at += LINE_MAX) this.waiting.push(line.slice(at, at + LINE_MAX));
    }
    this.draw();
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
        this.lines -= first.childElementCount;
        this.dropped += first.childElementCount;
        first.remove();
      }
      if (this.following && this.bottom) this.log.scrollTop = this.log.scrollHeight;
      this.tell(this.waiting.length ? `${this.waiting.length} lines to draw` : "");
      this.draw();
    });
  }

  tell(more) {
    const dropped = this.dropped ? ` ${this.dropped.toLocaleString()} earlier lines aren't kept here.` : "";
    this.say(`${this.lines.toLocaleString()} lines, ${(this.bytes / 1048576).toFixed(1)} MiB.${dropped} ${more}`);
  }

  add(told) {
    const [rank, line] = Array.isArray(told) ? told : ["", told];
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
