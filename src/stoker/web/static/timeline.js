// Who held which GPU when: a lane for each GPU, by node, and a bar for each time that a job held it.
import { css, now, penOf, rest, span as words } from "./page.js";

const canvas = document.getElementById("gantt");
const tip = document.getElementById("tip");
const SPANS = { "1h": 3600e3, "6h": 21600e3, "1d": 86400e3, "7d": 604800e3 };
const LANE = 9, HEAD = 16, TOP = 20, LEFT = 0;
let chosenBar = null; // by keys
let told = null, chosen = "1h", from = 0, to = 0, follows = true, fits = true, boxes = [], at = -1;

const dark = matchMedia("(prefers-color-scheme: dark)");
const isSame = (one, other) => one.job === other.job && one.node === other.node && one.start === other.start;
// Neighbours in number are far apart in colour.
const hue = (job) => (Number.parseInt(job, 10) * 137.508) % 360;
const FAILED = ["failed", "timeout", "out_of_memory", "node_failed", "lost"];

function reset() {
  const whole = SPANS[chosen];
  // A quarter of the width is for what is planned.
  [from, to] = [now() - whole * 0.8, now() + whole * 0.2];
  follows = fits = true;
}

function draw() {
  if (!told) return;
  if (follows) {
    // Of a young cluster what there is fills the width.
    const oldest = Math.min(now(), ...told.bars.filter((bar) => !bar.planned).map((bar) => Date.parse(bar.start)));
    const width = fits ? Math.min(SPANS[chosen], Math.max(60e3, (now() - oldest) * 1.35)) : to - from;
    [from, to] = [now() - width * 0.8, now() + width * 0.2];
  }
  const width = canvas.clientWidth || 600;
  const tops = new Map();
  let y = TOP;
  for (const [name, count] of told.nodes) {
    tops.set(name, [y, count]);
    y += HEAD + count * LANE + 6;
  }
  const height = Math.max(80, y);
  const pen = penOf(canvas, height);
  const x = (time) => LEFT + ((time - from) / (to - from)) * (width - LEFT);
  // times
  const steps = [5e3, 10e3, 30e3, 60e3, 300e3, 600e3, 1800e3, 3600e3, 7200e3, 21600e3, 43200e3, 86400e3];
  const step = steps.find((each) => (each / (to - from)) * width > 70) ?? 86400e3;
  const shift = new Date().getTimezoneOffset() * 60e3;
  const label = new Intl.DateTimeFormat(undefined, step >= 43200e3 ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit", ...(step < 60e3 ? { second: "2-digit" } : {}) });
  for (let time = Math.ceil((from - shift) / step) * step + shift; time < to; time += step) {
    pen.fillStyle = css("--line");
    pen.fillRect(x(time), TOP - 4, 1, height);
    pen.fillStyle = css("--faint");
    pen.fillText(label.format(time), x(time) + 3, 11);
  }
  for (const [name, [top, count]] of tops) {
    pen.fillStyle = css("--faint");
    pen.fillText(name, 2, top + 11);
    pen.fillStyle = css("--hover");
    pen.fillRect(0, top + HEAD, width, count * LANE);
  }
  boxes = [];
  for (const bar of told.bars) {
    const place = tops.get(bar.node);
    if (!place) continue;
    const start = Date.parse(bar.start), end = bar.end ? Date.parse(bar.end) : bar.planned ? to : now();
    const [left, right] = [Math.max(0, x(start)), Math.min(width, Math.max(x(end), x(start) + 2))];
    if (right < 0 || left > width) continue;
    if (bar.planned) {
      pen.strokeStyle = css("--wait");
      pen.setLineDash([4, 3]);
      pen.strokeRect(left, place[0] + HEAD + 1, Math.max(3, right - left), place[1] * LANE - 3);
      pen.setLineDash([]);
      boxes.push([left, place[0] + HEAD, Math.max(4, right - left), place[1] * LANE, bar]);
      continue;
    }
    const failed = FAILED.includes(bar.state);
    pen.fillStyle = failed ? "#d2473e" : `hsl(${hue(bar.job)} ${dark.matches ? 48 : 55}% ${dark.matches ? 58 : 52}%)`;
    for (const lane of bar.gpus.length ? bar.gpus : []) {
      const top = place[0] + HEAD + lane * LANE;
      pen.fillRect(left, top, Math.max(1, right - left), LANE - 1);
      boxes.push([left, top, Math.max(3, right - left), LANE, bar]);
    }
  }
  if (chosenBar) at = boxes.findIndex((each) => isSame(each[4], chosenBar));
  pen.fillStyle = css("--accent");
  pen.fillRect(x(now()), TOP - 4, 1.5, height);
  if (at >= 0 && boxes[at]) {
    pen.strokeStyle = css("--text");
    pen.strokeRect(boxes[at][0], boxes[at][1], boxes[at][2], boxes[at][3] - 1);
  }
}

const under = (event) => {
  for (let k = boxes.length - 1; k >= 0; k -= 1) {
    const [x, y, w, h] = boxes[k];
    if (event.offsetX >= x && event.offsetX <= x + w && event.offsetY >= y && event.offsetY < y + h) return k;
  }
  return -1;
};
let drag = null;
canvas.addEventListener("pointerdown", (event) => {
  drag = { x: event.clientX, from, to, moved: false };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointerup", () => {
  const was = drag;
  drag = null;
  if (was && !was.moved && at >= 0) location.assign(`/jobs/${encodeURIComponent(boxes[at][4].job)}`);
});
canvas.addEventListener("pointermove", (event) => {
  if (drag) {
    const by = ((event.clientX - drag.x) / canvas.clientWidth) * (drag.to - drag.from);
    if (Math.abs(event.clientX - drag.x) > 4) drag.moved = true;
    if (drag.moved) {
      [from, to] = [drag.from - by, drag.to - by];
      follows = false;
      draw();
    }
    return;
  }
  at = under(event);
  chosenBar = null;
  show(event.pageX + 12, event.pageY + 14);
  draw();
});
function tell(bar) {
  const end = bar.end ? Date.parse(bar.end) : now();
  return `${bar.job} ${bar.name}\n${[bar.user, bar.tenant].filter(Boolean).join(", ")}\n${bar.planned ? `planned on ${bar.node}, at the latest ${new Date(bar.start).toLocaleString()}` : `${bar.node}, ${bar.gpus.length} GPU${bar.gpus.length === 1 ? "" : "s"}, ${words(end - Date.parse(bar.start))}, ${bar.state.replaceAll("_", " ")}`}`;
}
function show(x, y) {
  tip.hidden = at < 0;
  if (at < 0) return;
  tip.textContent = tell(boxes[at][4]);
  tip.style.left = `${Math.max(8, Math.min(x, scrollX + document.documentElement.clientWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y}px`;
}
// By keys from bar to bar, in the order of their starts.
function step(by) {
  const shown = [...new Set(boxes.map((each) => each[4]))].sort((one, other) => Date.parse(one.start) - Date.parse(other.start) || Number.parseInt(one.job, 10) - Number.parseInt(other.job, 10));
  if (!shown.length) return;
  const was = shown.findIndex((each) => chosenBar && isSame(each, chosenBar));
  const next = by === Infinity ? shown.length - 1 : by === -Infinity ? 0 : was < 0 ? (by > 0 ? 0 : shown.length - 1) : Math.min(shown.length - 1, Math.max(0, was + by));
  chosenBar = shown[next];
  at = boxes.findIndex((each) => each[4] === chosenBar);
  const [x, y, , height] = boxes[at];
  const box = canvas.getBoundingClientRect();
  show(box.left + scrollX + x, box.top + scrollY + y + height + 6);
  document.getElementById("gantt-said").textContent = tell(chosenBar);
  draw();
}
canvas.addEventListener("blur", () => {
  chosenBar = null;
  at = -1;
  tip.hidden = true;
  draw();
});
canvas.addEventListener("pointerleave", () => {
  if (chosenBar) return;
  at = -1;
  tip.hidden = true;
  draw();
});
function zoom(factor, part = 0.8) {
  const middle = from + (to - from) * part;
  fits = false;
  const width = Math.min(30 * 86400e3, Math.max(60e3, (to - from) * factor));
  [from, to] = [middle - width * part, middle + width * (1 - part)];
  draw();
}
canvas.addEventListener("wheel", (event) => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  follows = false;
  zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, event.offsetX / canvas.clientWidth);
}, { passive: false });
canvas.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -0.2, ArrowRight: 0.2 }[event.key];
  const along = { ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity }[event.key];
  if (along) {
    event.preventDefault();
    step(along);
  } else if (event.key === "Enter" && at >= 0) location.assign(`/jobs/${encodeURIComponent(boxes[at][4].job)}`);
  else if (by) {
    event.preventDefault();
    const width = to - from;
    [from, to] = [from + by * width, to + by * width];
    follows = false;
    draw();
  } else if (event.key === "+") zoom(1 / 1.5);
  else if (event.key === "-") zoom(1.5);
});
document.getElementById("zoom-in").addEventListener("click", () => zoom(1 / 1.5));
document.getElementById("zoom-out").addEventListener("click", () => zoom(1.5));
document.getElementById("zoom-now").addEventListener("click", () => {
  reset();
  draw();
});
for (const each of document.querySelectorAll("[data-span]")) {
  each.addEventListener("click", () => {
    chosen = each.dataset.span;
    for (const other of document.querySelectorAll("[data-span]")) other.setAttribute("aria-pressed", String(other === each));
    reset();
    ask();
  });
}
let asking = false, asked = 0;
async function ask() {
  if (asking || document.hidden) return;
  asking = true;
  asked = performance.now();
  try {
    told = await rest("GET", `/timeline/bars?span=${chosen}`);
    document.getElementById("gantt-about").textContent = told.more ? "(of very many jobs the newest)" : "";
    draw();
  } catch {
    // The page says that it is stale.
  }
  asking = false;
}
document.addEventListener("tick", (event) => event.detail.topics.includes("job") && performance.now() - asked > 2000 && ask());
document.addEventListener("visibilitychange", () => !document.hidden && ask());
new ResizeObserver(draw).observe(canvas);
setInterval(() => {
  if (document.hidden) return;
  if (performance.now() - asked > 10000) ask();
  else if (follows) draw();
}, 1000);
reset();
ask();
