// The last hour of a GPU: its use, memory and temperature as lines.
import { css, now as clock, rest, say } from "./page.js";

const EVERY_MS = 10000;
let shown = null; // what is drawn: place, node, GPU, plot, timer

export function timeAxis() {
  const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
  const fine = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const values = (_, all) => all.map((each) => (all.length > 1 && all[1] - all[0] < 60 ? fine : time).format(each * 1000));
  return { stroke: () => css("--faint"), grid: { stroke: () => css("--line"), width: 1 }, ticks: { show: false }, space: 80, values };
}
export function valueAxis(scale, unit, more = {}) {
  return { ...timeAxis(), scale, size: 52, space: 30, values: (_, all) => all.map((each) => `${each}${unit}`), ...more };
}
export const timeSeries = () => ({ label: "Time", value: (_, each) => (each ? new Intl.DateTimeFormat(undefined, { timeStyle: "medium" }).format(each * 1000) : "–") });
export const amount = (unit, digits = 0) => (_, each) => (each === null || each === undefined ? "–" : `${each.toFixed(digits)}${unit}`);

export async function drawHour(place, node, uuid, title = uuid) {
  closeHour();
  const head = document.createElement("p");
  const name = document.createElement("strong");
  name.textContent = title;
  const said = document.createElement("span");
  said.className = "faint";
  head.append(name, " ", said);
  const chart = document.createElement("div");
  place.replaceChildren(head, chart);
  place.hidden = false;
  const mine = (shown = { place, plot: null, timer: 0 });
  const step = async () => {
    try {
      const told = await rest("GET", `/api/v1/nodes/${encodeURIComponent(node)}/figures`);
      if (shown !== mine) return;
      const gpu = told.gpus.find((each) => each.uuid === uuid);
      const now = clock() / 1000;
      said.textContent = !gpu || !gpu.age_s.length ? "nothing was told of it yet" : `its last hour${told.simulated ? ", simulated" : ""}, a point every ${told.step_s} s or so`;
      if (gpu?.age_s.length) paint(mine, chart, [gpu.age_s.map((age) => now - age), gpu.utilization_percent, gpu.memory_used_mb.map((each) => (each === null ? null : (each / Math.max(1, gpu.memory_mb)) * 100)), gpu.temperature_c, gpu.power_w]);
    } catch (fault) {
      said.textContent = fault.message;
    }
  };
  mine.timer = setInterval(() => !document.hidden && step(), EVERY_MS);
  await step();
}
export function closeHour() {
  if (!shown) return;
  clearInterval(shown.timer);
  shown.plot?.destroy();
  shown.place.replaceChildren();
  shown.place.hidden = true;
  shown = null;
}
function paint(mine, place, points) {
  if (mine.plot) return mine.plot.setData(points);
  const line = (label, scale, stroke, value) => ({ label, scale, stroke, width: 1.5, value, points: { show: false }, spanGaps: false });
  mine.plot = new uPlot(
    {
      width: Math.max(200, place.clientWidth),
      height: 190,
      scales: { x: { time: true, range: (_, from, to) => [Math.min(from, to - 300), to] }, percent: { range: [0, 100] }, degrees: { range: (_, __, most) => [20, Math.max(90, most)] }, watts: { range: (_, __, most) => [0, Math.max(100, most * 1.1)] } },
      axes: [timeAxis(), valueAxis("percent", " %"), valueAxis("degrees", " °C", { side: 1, grid: { show: false } })],
      series: [timeSeries(), line("Use", "percent", "#3d87e0", amount(" %")), line("Memory", "percent", "#2f9e63", amount(" %")), line("Temperature", "degrees", "#d9731f", amount(" °C")), line("Power", "watts", "#8a63d2", amount(" W"))],
    },
    points,
    place,
  );
  new ResizeObserver(() => mine.plot && place.clientWidth && mine.plot.setSize({ width: place.clientWidth, height: 190 })).observe(place);
}
export function hourOnClick() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-hour]");
    if (button) drawHour(document.getElementById("hour"), button.dataset.node, button.dataset.hour, button.dataset.title ?? button.dataset.hour).catch((fault) => say(fault.message, true));
  });
}
