// Timeline of rollout and training. Colour is never the only carrier of meaning: waits are hatched, every activity has an
// entry in the legend, wide bars are labelled and every bar has a tooltip.
const activities = {
  generate: { label: "generate", colour: "var(--a)" },
  load_weights: { label: "load weights", colour: "var(--d)", dots: true },
  train: { label: "train", colour: "var(--b)" },
  publish: { label: "publish", colour: "var(--d)" },
  evaluate: { label: "evaluate", colour: "var(--c)" },
  checkpoint: { label: "checkpoint", colour: "var(--e)" },
  wait_for_policy: { label: "wait for policy", colour: "var(--soft)", hatched: true },
  wait_for_batch: { label: "wait for batch", colour: "var(--soft)", hatched: true },
};
const laneOf = { generate: "rollout", load_weights: "rollout", wait_for_policy: "rollout", train: "train", publish: "train", evaluate: "train", checkpoint: "train", wait_for_batch: "train" };
const fillOf = name => activities[name].hatched ? "url(#hatch)" : activities[name].dots ? "url(#dots)" : activities[name].colour;
const seconds = s => s >= 5400 ? (s / 3600).toFixed(1) + " h" : s >= 100 ? (s / 60).toFixed(1) + " min" : Number(s.toPrecision(3)) + " s";
const clock = s => { const whole = Math.round(s), two = n => String(n).padStart(2, "0"); return whole >= 3600 ? `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}` : `${Math.floor(whole / 60)}:${two(whole % 60)}`; };
const share = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(1) + " %" : "–";
const text = (parent, x, y, words, attributes) => { const t = svg("text", { x, y, ...attributes }); t.textContent = words; parent.append(t); return t; };
const titled = (node, words) => { const t = svg("title", {}); t.textContent = words; node.append(t); return node; };

function patterns() {
  const s = svg("svg", { width: 0, height: 0, style: "position:absolute;width:0;height:0" }), defs = svg("defs", {});
  const hatch = svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  hatch.append(svg("rect", { width: 6, height: 6, fill: "var(--line)" }), svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, stroke: "var(--soft)", "stroke-width": 2.2 }));
  const dots = svg("pattern", { id: "dots", width: 4, height: 4, patternUnits: "userSpaceOnUse" });
  dots.append(svg("rect", { width: 4, height: 4, fill: "var(--d)" }), svg("circle", { cx: 2, cy: 2, r: 1, fill: "var(--card)" }));
  defs.append(hatch, dots); s.append(defs); return s;
}

function legend(names) {
  const box = el("div", undefined, "legend");
  for (const name of Object.keys(activities).filter(n => names.has(n))) {
    const entry = el("span"), s = svg("svg", { viewBox: "0 0 20 12", "aria-hidden": "true" });
    s.append(svg("rect", { width: 20, height: 12, rx: 2, fill: fillOf(name) })); entry.append(s, document.createTextNode(activities[name].label)); box.append(entry);
  }
  return box;
}

const frame = { W: 1120, L: 78, R: 46, lane: 34, gap: 10, top: 22, groups: 54 };
const laneTop = lane => frame.top + (lane === "train" ? frame.lane + frame.gap : 0);

// The axis, the names of the lanes and the start of each attempt. Returns the image and the scale.
function stageFrame(title, from, to, attempts, withGroups) {
  const { W, L, R, lane, gap, top, groups } = frame, bottom = top + 2 * lane + gap, H = bottom + (withGroups ? gap + groups : 0) + 24;
  const s = svg("svg", { viewBox: `0 0 ${W} ${H}`, class: "lanes", role: "img", "aria-label": title }), X = t => L + (t - from) / (to - from) * (W - L - R);
  for (const name of ["rollout", "train"]) { s.append(svg("rect", { class: "track", x: L, y: laneTop(name), width: W - L - R, height: lane })); text(s, L - 8, laneTop(name) + lane / 2 + 4, name, { "text-anchor": "end" }); }
  const raw = (to - from) / 12, power = 10 ** Math.floor(Math.log10(raw)), round = [1, 2, 5, 10].map(m => m * power);
  const every = (raw < 1 ? round : [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400].concat(round)).find(m => m >= raw);
  const moment = every >= 1 && to >= 60 ? clock : t => Number(t.toFixed(every < 1 ? 3 : 0)) + " s";
  const end = withGroups ? bottom + gap + groups : bottom;
  for (let t = Math.ceil(from / every) * every; t <= to + every * 1e-6; t += every) { s.append(svg("line", { class: "grid", x1: X(t), x2: X(t), y1: end, y2: end + 4 })); text(s, X(t), end + 16, moment(t), { "text-anchor": "middle" }); }
  let labelled = -Infinity;
  attempts.forEach(([number, at]) => { if (at < from || at > to) return; s.append(titled(svg("line", { x1: X(at), x2: X(at), y1: top - 4, y2: end, stroke: "var(--bad)", "stroke-dasharray": "4 3" }), "resumed")); if (X(at) - labelled > 66) { labelled = X(at); text(s, labelled + 4, top - 7, "attempt " + number, {}); } });
  return { s, X, base: end };
}

function drawGroups(s, X, base, points, to) {
  const most = Math.max(1, ...points.map(p => p[1])), Y = n => base - n / most * (frame.groups - 6);
  let path = "", before = base;
  for (const [at, n] of points) { path += `${path ? "L" : "M"}${X(at).toFixed(1)},${before.toFixed(1)}L${X(at).toFixed(1)},${Y(n).toFixed(1)}`; before = Y(n); }
  path += `L${X(to).toFixed(1)},${before.toFixed(1)}L${X(to).toFixed(1)},${base}Z`;
  s.append(titled(svg("path", { d: path, fill: "var(--a)", "fill-opacity": .25, stroke: "var(--a)", "stroke-width": 1 }), "groups in flight"));
  text(s, frame.L - 8, base - frame.groups / 2 + 10, "groups", { "text-anchor": "end" }); text(s, frame.W - frame.R + 5, Y(most) + 4, short(most >= 10 ? Math.round(most) : most)); text(s, frame.W - frame.R + 5, base, "0");
}

function stageOverview(stage) {
  const fig = el("figure", undefined, "wide"), cap = el("figcaption"), count = Math.max(0, ...Object.values(stage.overview).map(v => v.length));
  cap.append(el("span", "Overview"), el("output", `share of time by activity, per ${seconds(stage.slice_seconds)}`)); fig.append(cap);
  const { s, X, base } = stageFrame("share of time by activity over the stage", 0, stage.seconds, stage.attempts, stage.groups.length);
  const width = (X(stage.seconds) - X(0)) / count + .15;
  for (const lane of ["rollout", "train"]) {
    const names = Object.keys(activities).filter(n => stage.overview[n] && laneOf[n] === lane);
    for (let i = 0; i < count; i++) {
      let y = laneTop(lane) + frame.lane, words = [];
      for (const name of names) { const part = Math.min(stage.overview[name][i] / 100 * frame.lane, y - laneTop(lane)); if (part <= 0) continue; y -= part; words.push(`${activities[name].label} ${stage.overview[name][i]} %`); s.append(svg("rect", { x: X(i * stage.slice_seconds).toFixed(2), y: y.toFixed(1), width: width.toFixed(2), height: part.toFixed(1), fill: fillOf(name) })); }
      if (words.length) s.append(titled(svg("rect", { x: X(i * stage.slice_seconds), y: laneTop(lane), width, height: frame.lane, fill: "transparent" }), `${seconds(i * stage.slice_seconds)}: ${words.join(", ")}`));
    }
  }
  if (stage.groups.length) drawGroups(s, X, base, stage.groups.map((n, i) => [i * stage.slice_seconds, n]), stage.seconds);
  fig.append(s); return fig;
}

function stageWindow(stage, part, title) {
  const fig = el("figure", undefined, "wide"), cap = el("figcaption");
  cap.append(el("span", title), el("output", "numbers: batch for train, policy version otherwise")); fig.append(cap);
  const { s, X, base } = stageFrame(title, part.start, part.end, stage.attempts, part.groups.length);
  const work = frame.lane * .7, labels = [];
  // Short bars are drawn last, so that long ones do not hide them.
  for (const b of [...part.spans].sort((a, b) => (b.end - b.start) - (a.end - a.start))) {
    const kind = activities[b.activity], wait = kind.hatched, y = laneTop(b.lane) + (wait ? work : 0), width = Math.max(X(b.end) - X(b.start), 1.2), height = wait ? frame.lane - work : work;
    s.append(titled(svg("rect", { x: X(b.start).toFixed(1), y: y.toFixed(1), width: width.toFixed(1), height: height.toFixed(1), fill: fillOf(b.activity), stroke: "var(--card)", "stroke-width": width > 4 ? .8 : 0 }), `${b.lane}: ${kind.label} ${b.version}, ${seconds(b.end - b.start)} from ${seconds(b.start)}`));
    const words = [`${kind.label} ${b.version}`, `${b.version}`].find(w => w.length * 5.6 + 6 < width);
    if (!wait && words) labels.push(() => text(s, X(b.start) + width / 2, y + height / 2 + 3.5, words, { "text-anchor": "middle", class: "in" }));
  }
  labels.forEach(label => label());
  if (part.groups.length) drawGroups(s, X, base, part.groups, part.end);
  fig.append(s); return fig;
}

// Table of the time of each lane.
function times(stage) {
  const table = el("table", undefined, "times"), head = el("tr"), body = el("tbody");
  for (const h of ["lane", "working", "waiting", "idle", "breakdown"]) head.append(el("th", h));
  for (const lane of stage.lanes) {
    const tr = el("tr");
    tr.append(el("td", lane.lane), el("td", `${share(lane.working, stage.seconds)} · ${seconds(lane.working)}`, "num"), el("td", `${share(lane.waiting, stage.seconds)} · ${seconds(lane.waiting)}`, "num"), el("td", share(lane.idle, stage.seconds), "num"), el("td", lane.activities.map(([name, s]) => `${activities[name].label} ${share(s, stage.seconds)}`).join(", ")));
    body.append(tr);
  }
  const both = el("tr"); both.append(el("td", "overlap"), el("td", `${share(stage.overlap, stage.seconds)} · ${seconds(stage.overlap)}`, "num")); body.append(both);
  const top = el("thead"); top.append(head); table.append(top, body); return table;
}

function drawTimeline() {
  const place = $("timeline"); if (!data.timeline.length) return;
  place.append(el("h2", "Rollout and training over time"), patterns());
  for (const stage of data.timeline) {
    const box = el("div", undefined, "scroll"); box.append(times(stage));
    place.append(el("p", `Stage ${stage.name}: ${seconds(stage.seconds)}` + (stage.attempt_count > 1 ? ` in ${stage.attempt_count} attempts` : ""), "soft"), box, legend(new Set(Object.keys(stage.overview))));
    const [all, some] = stage.activities;
    if (some < all) place.append(el("p", `${some.toLocaleString("en")} of ${all.toLocaleString("en")} activities are shown one by one; the table and the overview include all.`, "note"));
    if (stage.windows.length > 1) place.append(stageOverview(stage));
    const names = stage.windows.length === 1 ? ["All activities"] : stage.windows.length === 2 ? ["Beginning", "End"] : ["Beginning", "Middle", "End"];
    stage.windows.forEach((part, i) => place.append(stageWindow(stage, part, names[i])));
  }
}

// Age of the trained tokens over the run.
function drawAges() {
  if (!data.ages.some(a => a[0] > 0)) return;
  const fig = el("figure"), cap = el("figcaption"), W = 360, H = 190, L = 58, R = 64, row = Math.min(30, 140 / data.ages.length);
  cap.append(el("span", "Trained tokens by age"), el("output", "age in policy versions")); const s = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "share of trained tokens by age in policy versions" });
  data.ages.forEach(([age, part], i) => { const y = 18 + i * row; s.append(svg("rect", { x: L, y, width: Math.max(part * (W - L - R), 1), height: row * .7, fill: "var(--a)" })); text(s, L - 6, y + row * .5, `${age}`, { "text-anchor": "end" }); text(s, L + part * (W - L - R) + 5, y + row * .5, (100 * part).toFixed(1) + " %"); });
  fig.append(cap, s); $("charts").append(fig);
}
drawAges(); drawTimeline();
