// GPUs as a map on a canvas: a cell for each, by node, coloured by what is asked for.
import { amount, closeHour, drawHour, timeAxis, timeSeries, valueAxis } from "./hour.js";
import { css, now, penOf, rest } from "./page.js";

const canvas = document.getElementById("map");
const tip = document.getElementById("tip");
const GAP = 2, LABEL = 15, PAD = 10;
let told = null; // the newest answer
let cells = []; // of each GPU: x, y, size
let colour = sessionStorage.getItem("stoker-colour") || "use";
let at = -1; // the GPU under the pointer or the keys
const points = [[], [], []]; // times, GPUs in use, mean use

const dark = matchMedia("(prefers-color-scheme: dark)");

function mix(from, to, part) {
  return `rgb(${from.map((each, k) => Math.round(each + (to[k] - each) * part)).join(",")})`;
}
const steps = () => (dark.matches ? [[37, 48, 64], [31, 98, 150], [52, 168, 168], [240, 192, 90], [255, 138, 61]] : [[227, 232, 238], [164, 205, 235], [88, 178, 186], [240, 180, 70], [214, 84, 10]]);
function ramp(part) {
  const all = steps();
  const place = Math.min(0.9999, Math.max(0, part)) * (all.length - 1);
  return mix(all[Math.floor(place)], all[Math.floor(place) + 1], place % 1);
}
// Twelve hues apart from each other; more tenants than that share some, and the tip names them.
const HUES = [24, 205, 140, 275, 48, 330, 175, 95, 235, 0, 300, 65];
const tenantColour = (place) => `hsl(${HUES[place % HUES.length]} ${dark.matches ? 55 : 60}% ${dark.matches ? 58 - 10 * Math.floor(place / 12) : 50 - 8 * Math.floor(place / 12)}%)`;
const HEALTH = { healthy: "#3fae6e", suspect: "#e0a92e", repairing: "#e0a92e", drained: "#d2473e" };
const away = (status) => (status === "idle" || status === "busy" ? null : css("--off"));

function colourOf(k) {
  const status = told.status[k];
  if (colour === "health") return status === "lost" || status === "quarantined" ? "#d2473e" : status === "offline" ? css("--off") : HEALTH[told.health[k]] ?? css("--off");
  if (away(status)) return away(status);
  if (colour === "tenant") return told.tenant[k] === null ? (status === "busy" ? css("--off") : css("--heat-0")) : tenantColour(told.tenant[k]);
  if (colour === "temperature") return told.temperature[k] === null ? css("--heat-0") : ramp((told.temperature[k] - 25) / 65);
  if (told.use[k] !== null) return ramp(told.use[k] / 100);
  return status === "busy" ? ramp(0.5) : css("--heat-0");
}

// -- drawing ------------------------------------------------------------------------------------------------------------

function layOut() {
  const width = canvas.clientWidth || 600;
  const most = Math.max(1, ...told.nodes.map(([, count]) => count));
  const size = told.index.length > 2000 ? 10 : told.index.length > 600 ? 14 : told.index.length > 150 ? 20 : 28;
  const across = Math.min(most, Math.max(1, Math.floor((width + GAP) / (size + GAP))), 16);
  const box = across * (size + GAP) - GAP;
  const columns = Math.max(1, Math.floor((width + PAD) / (box + PAD)));
  cells = [];
  let k = 0, y = 0, tallest = 0;
  const labels = [];
  told.nodes.forEach(([name, count], n) => {
    const column = n % columns;
    if (column === 0 && n) {
      y += tallest + PAD;
      tallest = 0;
    }
    const x = column * (box + PAD);
    labels.push([name, x, y, box]);
    for (let j = 0; j < count; j += 1, k += 1) cells.push([x + (j % across) * (size + GAP), y + LABEL + Math.floor(j / across) * (size + GAP), size]);
    tallest = Math.max(tallest, LABEL + Math.ceil(count / across) * (size + GAP));
  });
  return { height: y + tallest + 2, labels };
}

function draw() {
  if (!told) return;
  const { height, labels } = layOut();
  const pen = penOf(canvas, height);
  pen.fillStyle = css("--faint");
  for (const [name, x, y, box] of labels) pen.fillText(name, x, y + 10, box);
  cells.forEach(([x, y, size], k) => {
    pen.fillStyle = colourOf(k);
    pen.beginPath();
    pen.roundRect(x, y, size, size, Math.min(5, size / 4));
    pen.fill();
  });
  if (at >= 0 && cells[at]) {
    const [x, y, size] = cells[at];
    pen.strokeStyle = css("--text");
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, y - 1, size + 2, size + 2);
  }
}

function legend() {
  const place = document.getElementById("legend");
  const entries = [];
  if (colour === "use") for (const part of [0, 0.25, 0.5, 0.75, 1]) entries.push([ramp(part), `${part * 100} %`]);
  else if (colour === "temperature") for (const degrees of [30, 45, 60, 75, 90]) entries.push([ramp((degrees - 25) / 65), `${degrees} °C`]);
  else if (colour === "tenant") told.tenants.slice(0, 24).forEach((name, k) => entries.push([tenantColour(k), name]));
  else for (const [name, each] of Object.entries(HEALTH)) if (name !== "repairing") entries.push([each, name === "suspect" ? "suspect or repairing" : name]);
  if (colour === "tenant" || colour === "temperature") entries.push([css("--heat-0"), "idle"]);
  entries.push([css("--off"), "offline or drained"]);
  place.replaceChildren(
    ...entries.map(([fill, words]) => {
      const row = document.createElement("span");
      const dot = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      dot.setAttribute("viewBox", "0 0 1 1");
      const square = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      square.setAttribute("width", "1");
      square.setAttribute("height", "1");
      square.setAttribute("fill", fill);
      dot.append(square);
      row.append(dot, words);
      return row;
    }),
  );
}

// -- what is under the pointer ----------------------------------------------------------------------------------------------

function nodeOf(k) {
  let left = k;
  for (const [name, count] of told.nodes) {
    if (left < count) return name;
    left -= count;
  }
  return "";
}
function words(k) {
  const figures = told.use[k] === null && told.temperature[k] === null ? "no figures" : `${told.use[k] ?? "?"} % used, ${told.temperature[k] ?? "?"} °C, ${told.memory_used_mb[k] === null ? "?" : (told.memory_used_mb[k] / 1024).toFixed(1)} of ${(told.memory_mb[k] / 1024).toFixed(0)} GiB`;
  const tenant = told.tenant[k] === null ? "" : `, ${told.tenants[told.tenant[k]]}`;
  return [
    `${nodeOf(k)}, GPU ${told.index[k]}: ${told.status[k]}${told.health[k] === "healthy" ? "" : `, ${told.health[k]}`}`,
    told.job[k] === null ? "" : `job ${told.job[k]}${tenant}`,
    `${figures}${told.simulated ? " (simulated)" : ""}`,
    told.models[told.model[k]],
  ].filter(Boolean).join("\n");
}
function point(k, loud = false) {
  at = k;
  tip.hidden = k < 0;
  if (k >= 0) {
    const [x, y, size] = cells[k];
    const box = canvas.getBoundingClientRect();
    tip.textContent = words(k);
    const left = Math.min(box.left + scrollX + x + size + 6, scrollX + document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${box.top + scrollY + y + size + 6}px`;
    if (loud) document.getElementById("map-said").textContent = words(k);
  }
  draw();
}
const under = (event) => cells.findIndex(([x, y, size]) => event.offsetX >= x && event.offsetX < x + size + GAP && event.offsetY >= y && event.offsetY < y + size + GAP);
canvas.addEventListener("pointermove", (event) => {
  const k = under(event);
  if (k !== at) point(k);
});
canvas.addEventListener("pointerleave", () => point(-1));
canvas.addEventListener("blur", () => point(-1));
const chosen = document.getElementById("chosen");
function link(href, text) {
  const made = document.createElement("a");
  made.className = "button";
  made.href = href;
  made.textContent = text;
  return made;
}
function open(k) {
  // What is told of one GPU, below the map: where to go from it, and its last hour.
  if (k < 0) {
    chosen.hidden = true;
    closeHour();
    return;
  }
  const node = nodeOf(k);
  const about = document.getElementById("chosen-about");
  about.textContent = words(k).split("\n").slice(0, 3).join(" · ");
  const links = [link(`/nodes/${encodeURIComponent(node)}`, `Node ${node}`)];
  if (told.job[k]) links.unshift(link(`/jobs/${encodeURIComponent(told.job[k])}`, `Job ${told.job[k]}`));
  document.getElementById("chosen-links").replaceChildren(...links);
  chosen.hidden = false;
  tip.hidden = true;
  drawHour(document.getElementById("hour"), node, told.uuid[k], `${node}, GPU ${told.index[k]}`);
}
document.getElementById("chosen-close").addEventListener("click", () => {
  open(-1);
  canvas.focus();
});
canvas.addEventListener("click", (event) => open(under(event)));
canvas.addEventListener("keydown", (event) => {
  const row = cells.length > 1 ? Math.max(1, cells.findIndex(([, y]) => y > cells[0][1])) : 1;
  const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row }[event.key];
  if (by) {
    event.preventDefault();
    point(Math.min(cells.length - 1, Math.max(0, at + by)), true);
  } else if (event.key === "Enter") open(at);
});

// -- colours ------------------------------------------------------------------------------------------------------------------

const buttons = document.querySelectorAll("[data-colour]");
function choose(name) {
  colour = name;
  sessionStorage.setItem("stoker-colour", name);
  for (const each of buttons) each.setAttribute("aria-pressed", String(each.dataset.colour === name));
  if (told) {
    draw();
    legend();
  }
}
for (const each of buttons) each.addEventListener("click", () => choose(each.dataset.colour));
choose(["use", "tenant", "temperature", "health"].includes(colour) ? colour : "use");
dark.addEventListener("change", () => choose(colour));
new ResizeObserver(draw).observe(canvas);

// -- figures --------------------------------------------------------------------------------------------------------------------

// Figures of few nodes come every second while somebody looks, those of many with heartbeats.
const NEAR_NODES = 16;
const pause_ms = () => (told && told.nodes.length <= NEAR_NODES ? 900 : 1900);
let asking = false, asked = 0, plot = null;
async function ask() {
  if (asking || document.hidden) return;
  asking = true;
  asked = performance.now();
  try {
    told = await rest("GET", "/map");
    const busy = told.status.filter((each) => each === "busy").length;
    const known = told.use.filter((each) => each !== null);
    document.getElementById("map-about").textContent = `${busy} of ${told.status.length} in use on ${told.nodes.length} nodes${told.simulated ? ", figures simulated" : ""}`;
    if (at >= cells.length) at = -1;
    draw();
    legend();
    if (at >= 0) tip.textContent = words(at);
    chart(busy, known.length ? known.reduce((sum, each) => sum + each, 0) / known.length : null);
  } catch {
    // The page says that it is stale.
  }
  asking = false;
}
function chart(busy, mean) {
  points[0].push(now() / 1000);
  points[1].push(busy);
  points[2].push(mean);
  if (points[0].length > 3600) for (const each of points) each.splice(0, 600);
  const place = document.getElementById("chart");
  const width = place.clientWidth;
  if (!plot) {
    plot = new uPlot(
      {
        width,
        height: 170,
        legend: { live: true },
        scales: { x: { time: true, range: (_, from, to) => [from, Math.max(to, from + 60)] }, gpus: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] }, percent: { range: [0, 100] } },
        axes: [timeAxis(), valueAxis("gpus", ""), valueAxis("percent", " %", { side: 1, grid: { show: false } })],
        series: [timeSeries(), { label: "GPUs in use", scale: "gpus", stroke: "#3d87e0", width: 2, fill: "#3d87e022", value: amount("") }, { label: "Mean use", scale: "percent", stroke: "#d9731f", width: 2, value: amount(" %") }],
      },
      points,
      place,
    );
    new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: 170 })).observe(place);
  } else plot.setData(points);
}
document.addEventListener("tick", (event) => {
  if (event.detail.topics.some((each) => each === "job" || each === "node") && performance.now() - asked > pause_ms()) ask();
});
setInterval(() => performance.now() - asked > pause_ms() && ask(), 250);
document.addEventListener("visibilitychange", () => !document.hidden && ask());
ask();
