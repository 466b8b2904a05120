"use strict";
// What jobs, tasks and logs are called or say is set as text, never as markup.
const $ = (id) => document.getElementById(id);
const el = (name, text, kind) => { const e = document.createElement(name); if (text !== undefined) e.textContent = text; if (kind) e.className = kind; return e; };
const svg = (name, attributes) => { const e = document.createElementNS("http://www.w3.org/2000/svg", name); for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v); return e; };
const KEPT = 2000;
let job = "", source = null, lines = [], painting = false, seen = {};

const ask = async (path, options) => {
  const answer = await fetch(path, options);
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  return answer.json();
};
const age = (time) => {
  const s = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  return s < 60 ? `${s.toFixed(0)} s` : s < 3600 ? `${(s / 60).toFixed(0)} min` : s < 86400 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} d`;
};
// At most six round numbers between two, for the lines of a chart.
const ticks = (low, high) => {
  if (!(high > low)) return [low];
  const power = 10 ** Math.floor(Math.log10((high - low) / 5)), step = [1, 2, 5, 10].map((n) => n * power).find((n) => (high - low) / n <= 5);
  const all = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) all.push(Number((n * step).toPrecision(12)));
  return all;
};
const short = (text) => (text !== "" && Number.isFinite(Number(text)) ? String(Number(Number(text).toPrecision(4))) : text);
const row = (cells) => { const tr = el("tr"); for (const cell of cells) { const td = el("td"); td.append(cell); tr.append(td); } return tr; };

async function list() {
  const { jobs } = await ask("/api/jobs");
  $("jobs").replaceChildren(...jobs.map((one) => {
    const link = el("a", one.jobId);
    link.href = `#${encodeURIComponent(one.jobId)}`;
    const tasks = one.phalanx.tasks.length ? String(one.phalanx.tasks.length) : "";
    return row([link, el("span", one.state, `state ${one.state}`), age(one.createTime), tasks, one.phalanx.executor || ""]);
  }));
  $("empty").hidden = jobs.length > 0;
}

async function show() {
  const one = await ask(`/api/jobs/${encodeURIComponent(job)}`);
  $("name").textContent = one.jobId;
  $("state").textContent = one.state;
  $("state").className = `state ${one.state}`;
  $("cancel").hidden = Boolean(one.endTime);
  $("error").hidden = !one.errorMessage;
  $("error").textContent = one.errorMessage || "";
  const facts = { Created: one.createTime, Started: one.startTime, Ended: one.endTime, "Runs on": one.phalanx.executor, "Waits for": one.phalanx.waitsFor, "Called there": one.phalanx.handle, Results: one.phalanx.jobDir, Attempt: one.phalanx.attempt || "" };
  $("facts").replaceChildren(...Object.entries(facts).filter(([, v]) => v).flatMap(([k, v]) => [el("dt", k), el("dd", String(v))]));
  $("tasks").replaceChildren(...one.phalanx.tasks.map((t) => row([t.task, String(t.attempt), t.place, t.end || t.state])));
  const failure = one.phalanx.firstFailure;
  $("failed").hidden = !failure;
  if (failure) {
    $("who").textContent = `${failure.task}${failure.rank === null ? "" : ` (rank ${failure.rank})`} ${failure.end}, attempt ${failure.attempt}`;
    $("last").textContent = failure.lastLines.join("\n");
  }
  const told = trials(one);
  const measured = await ask(`/api/jobs/${encodeURIComponent(job)}/metrics`);
  draw($("curves"), measured.curves.length ? measured.curves : told, "No metrics yet.", { zero: false, unit: "" });
  draw($("speed"), measured.speed, "No times of steps yet.", { zero: true, unit: "" });
  draw($("usage"), measured.usage, "Nothing was measured: only tasks of this machine are.", { zero: true, unit: " s" });
}

function trials(one) {
  const all = one.trainingOutput.trials || [];
  $("trials").hidden = all.length === 0;
  if (!all.length) return [];
  const names = Object.keys(all[0].hyperparameters), tag = one.trainingOutput.hyperparameterMetricTag;
  const value = (t) => (t.finalMetric ? t.finalMetric.objectiveValue : undefined);
  const heads = el("tr");
  for (const name of ["Trial", "State", tag, ...names]) { const th = el("th", name); th.scope = "col"; heads.append(th); }
  $("trialhead").replaceChildren(heads);
  const cells = (t) => [t.trialId, t.isTrialStoppedEarly ? "STOPPED" : t.state, value(t) === undefined ? "" : value(t).toPrecision(5), ...names.map((n) => { const cell = el("span", short(t.hyperparameters[n])); cell.title = t.hyperparameters[n]; return cell; })];
  const search = one.trainingInput.hyperparameters || {}, sign = search.goal === "MINIMIZE" ? 1 : -1;
  const best = Math.min(...all.filter((t) => value(t) !== undefined).map((t) => sign * value(t)));
  const isBest = (t) => sign * value(t) === best;
  $("trialrows").replaceChildren(...all.map((t) => { const tr = row(cells(t)); if (isBest(t)) tr.className = "best"; return tr; }));
  // Parallel coordinates: an axis for each parameter and one for the metric; the best trial stands out.
  const axes = [...names, tag], rows = all.filter((t) => value(t) !== undefined);
  const cell = (t, a) => (a === tag ? value(t) : t.hyperparameters[a]);
  const scales = axes.map((a) => {
    const values = rows.map((t) => cell(t, a)), numbers = values.map(Number);
    if (numbers.some(Number.isNaN)) { const kinds = [...new Set(values)].sort(); return { at: (v) => (kinds.indexOf(v) + 0.5) / kinds.length, low: kinds[0], high: kinds[kinds.length - 1] }; }
    const low = Math.min(...numbers), high = Math.max(...numbers);
    const of = (search.params || []).find((p) => p.parameterName === a), scale = of && of.scaleType === "UNIT_LOG_SCALE" && low > 0 ? Math.log : Number;
    return { at: (v) => (high > low ? (scale(v) - scale(low)) / (scale(high) - scale(low)) : 0.5), low: Number(low.toPrecision(4)), high: Number(high.toPrecision(4)) };
  });
  const chart = svg("svg", { viewBox: "0 0 800 220", role: "img", "aria-label": "trials" }), x = (i) => 60 + (i * 680) / Math.max(1, axes.length - 1), y = (u) => 190 - 150 * u;
  axes.forEach((a, i) => {
    chart.append(svg("line", { x1: x(i), x2: x(i), y1: 40, y2: 190, class: "axis" }));
    for (const [text, at] of [[a, 18], [scales[i].high, 34], [scales[i].low, 206]]) { const t = svg("text", { x: x(i), y: at, "text-anchor": "middle" }); t.textContent = text; chart.append(t); }
  });
  for (const t of rows.sort((one, other) => isBest(one) - isBest(other))) chart.append(svg("polyline", { class: `curve ${isBest(t) ? "c1" : "c5"}`, "stroke-opacity": isBest(t) ? 1 : 0.5, points: axes.map((a, i) => `${x(i)},${y(scales[i].at(cell(t, a)))}`).join(" ") }));
  $("parallel").replaceChildren(chart);
  // What trials told of the metric, where their programs keep no other history.
  return all.filter((t) => t.allMetrics.length).map((t) => ({ metric: tag, run: t.trialId, points: t.allMetrics.map((m) => [Number(m.trainingStep), m.objectiveValue]) }));
}

// One chart for each metric, with a line for training, one for validation, and those of every trial; or one for each task.
function draw(place, all, nothing, { zero, unit }) {
  const charts = {};
  for (const curve of all) (charts[curve.metric] = charts[curve.metric] || []).push(curve);
  place.replaceChildren(...Object.entries(charts).map(([metric, own]) => {
    const figure = el("figure"), caption = el("figcaption", metric);
    own.slice(0, 6).forEach((c, i) => { if (c.run) caption.append(" ", el("span", `— ${c.run}`, `key${i % 6}`)); });
    const points = own.flatMap((c) => c.points), xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
    const [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = [Math.min(...ys, ...(zero ? [0] : [])), Math.max(...ys)];
    const x = (v) => 52 + (x1 > x0 ? (380 * (v - x0)) / (x1 - x0) : 190), y = (v) => 172 - (y1 > y0 ? (150 * (v - y0)) / (y1 - y0) : 75);
    const chart = svg("svg", { viewBox: "0 0 440 200", role: "img", "aria-label": metric });
    chart.append(svg("line", { x1: 52, x2: 432, y1: 176, y2: 176, class: "axis" }), svg("line", { x1: 48, x2: 48, y1: 18, y2: 176, class: "axis" }));
    for (const v of ticks(y0, y1)) {
      chart.append(svg("line", { x1: 48, x2: 432, y1: y(v), y2: y(v), class: "axis" }));
      const t = svg("text", { x: 44, y: y(v) + 4, "text-anchor": "end" });
      t.textContent = short(v);
      chart.append(t);
    }
    for (const [text, px, anchor] of [[x0, 52, "start"], [x1, 432, "end"]]) { const t = svg("text", { x: px, y: 192, "text-anchor": anchor }); t.textContent = `${text}${unit}`; chart.append(t); }
    own.forEach((c, i) => chart.append(svg("polyline", { class: `curve c${i % 6}`, points: c.points.map((p) => `${x(p[0])},${y(p[1])}`).join(" ") })));
    figure.append(caption, chart);
    return figure;
  }));
  if (!all.length) place.replaceChildren(el("p", nothing));
}

function paint() {
  painting = false;
  const log = $("log"), low = log.scrollHeight - log.scrollTop - log.clientHeight < 30;
  const task = $("task").value, text = $("search").value.toLowerCase();
  const wanted = lines.filter((l) => (!task || l.task === task) && (!text || l.message.toLowerCase().includes(text)));
  log.textContent = wanted.map((l) => `${l.time.slice(11, 23)}  ${l.task.padEnd(10)}  ${l.message}`).join("\n");
  if (low) log.scrollTop = log.scrollHeight;
}
const later = () => { if (!painting) { painting = true; requestAnimationFrame(paint); } };

function follow() {
  if (source) source.close();
  lines = []; seen = {};
  $("task").replaceChildren(el("option", "all")); $("task").firstChild.value = "";
  $("log").textContent = "";
  source = new EventSource(`/api/jobs/${encodeURIComponent(job)}/logs?follow=1&tail=500`);
  source.addEventListener("lines", (event) => {
    const more = JSON.parse(event.data);
    for (const l of more.slice(-KEPT)) if (!seen[l.task]) { seen[l.task] = true; $("task").append(el("option", l.task)); }
    lines = lines.concat(more.slice(-KEPT)).slice(-KEPT);
    later();
  });
  source.addEventListener("end", () => source.close());
}

function open() {
  job = decodeURIComponent(location.hash.slice(1));
  $("list").hidden = Boolean(job); $("one").hidden = !job;
  if (source) { source.close(); source = null; }
  if (job) follow();
  refresh();
}
let busy = false, again = false;
async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  try { await (job ? show() : list()); $("live").textContent = "live"; } catch (error) { $("live").textContent = error.message; }
  busy = false;
  if (again) { again = false; setTimeout(refresh, 200); }
}
$("cancel").addEventListener("click", async () => { if (confirm(`Cancel ${job}?`)) await ask(`/api/jobs/${encodeURIComponent(job)}/cancel`, { method: "POST" }); });
$("task").addEventListener("change", later); $("search").addEventListener("input", later);
window.addEventListener("hashchange", open);
const changes = new EventSource("/api/changes");
changes.addEventListener("changed", refresh);
changes.onerror = () => { $("live").textContent = "the service does not answer"; };
setInterval(refresh, 2000);
open();
