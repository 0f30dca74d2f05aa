"use strict";
// Draws the page's data. Names from records reach the page through textContent and plain() alone.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { configurations, cells } = data;
  // Okabe and Ito's colours: told apart by colour-blind readers, in light and dark mode.
  const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star",
    "hexagram"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const MOST_CELLS = 200;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const byId = (id) => document.getElementById(id);
  const colour = (i) => COLOURS[i % COLOURS.length];
  const GREYS = { "ideal step": "#999999", "work of the device": "#555555" };
  // From the seventh part of a picture on with a pattern.
  const look = (i) => ({ color: COLOURS[i % 6],
    pattern: { shape: ["", "/", "x", "."][Math.floor(i / 6) % 4] } });

  // Plotly reads some HTML in its texts, and LaTeX between dollar signs.
  const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;" };
  const MOST_LETTERS = 60;
  const short = (text) => (text.length > MOST_LETTERS
    ? `${text.slice(0, MOST_LETTERS / 2)}…${text.slice(-MOST_LETTERS / 2)}` : text);
  const escaped = (text) => String(text).replace(/[&<>$]/g, (c) => ENTITIES[c]);
  const plain = (text) => escaped(short(String(text)));

  function element(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  // ---- what is shown -------------------------------------------------------------------------

  const FILTERS = ["model", "strategy", "devices"];
  const shown = Object.fromEntries(FILTERS.map((key) => [key, new Set()]));
  const values = (key) => [...new Set(configurations.map((c) => String(c[key] ?? "unknown")))];
  const passes = (c) => FILTERS.every((key) => shown[key].has(String(c[key] ?? "unknown")));
  const visible = () => configurations.map((c, i) => ({ ...c, i })).filter(passes);

  function makeFilters() {
    const typed = new URLSearchParams(location.hash.slice(1));
    for (const key of FILTERS) {
      const all = values(key);
      const asked = typed.getAll(key).filter((value) => all.includes(value));
      shown[key] = new Set(asked.length ? asked : all);
      if (all.length < 2) continue;
      const boxes = all.map((value) => {
        const box = element("input", {
          type: "checkbox", name: key, value, checked: shown[key].has(value) });
        box.addEventListener("change", () => {
          if (box.checked) shown[key].add(value); else shown[key].delete(value);
          rememberFilters();
          draw();
        });
        return element("label", {}, box, ` ${value}`);
      });
      byId("filters").append(element("fieldset", {},
        element("legend", { textContent: key }), ...boxes));
    }
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
  }

  function rememberFilters() {
    const typed = new URLSearchParams();
    for (const key of FILTERS) {
      if (shown[key].size < values(key).length) {
        for (const value of shown[key]) typed.append(key, value);
      }
    }
    history.replaceState(null, "", `#${typed}`);
  }

  // ---- how it is drawn -----------------------------------------------------------------------

  const waiting = new Map();
  const drawNow = (id) => {
    const draw = waiting.get(id);
    waiting.delete(id);
    draw?.();
  };
  // A picture is drawn when it comes into view: a page of 100 cells opens at once.
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) if (isIntersecting) drawNow(target.id);
  }, { rootMargin: "400px" });
  // Paper has no view, and who takes a screenshot waits for loading alone.
  addEventListener("beforeprint", () => [...waiting.keys()].forEach(drawNow));
  const isFirstSeen = (at) =>
    document.readyState === "loading" && at.getBoundingClientRect().top < innerHeight;

  const styled = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function layout(title, x, y, traces, more, width) {
    const axis = { gridcolor: styled("--line"), zerolinecolor: styled("--line"), automargin: true };
    const labels = Object.values(more).flatMap((own) => own?.ticktext ?? []);
    // The legend has the width that the labels beside the bars leave.
    const below = legendHeight(traces, width - 6.5 * Math.max(0, ...labels.map((one) => one.length)));
    return {
      title: { text: title, x: 0.01, xanchor: "left", font: { size: 15 } },
      font: { color: styled("--ink"), family: "system-ui, sans-serif", size: 12 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 60, r: 15, t: 45, b: 55 + below }, hovermode: "closest",
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", maxheight: 1,
        traceorder: "normal" },
      ...more,
      height: (more.height ?? 300) + below,
      xaxis: { ...axis, title: { text: x }, ...(more.xaxis ?? {}) },
      yaxis: { ...axis, title: { text: y }, ...(more.yaxis ?? {}) },
      ...Object.fromEntries(Object.entries(more).filter(([key]) => /^[xy]axis\d/.test(key))
        .map(([key, own]) => [key, { ...axis, ...own }])),
    };
  }

  function legendHeight(traces, width) {
    const names = traces.filter((t) => t.showlegend !== false).map((t) => t.name.length);
    const across = Math.floor((width - 75) / (45 + 6.5 * Math.max(...names, 0)));
    return 20 * Math.ceil(names.length / Math.max(1, across));
  }

  function picture(id, title, x, y, traces, more = {}) {
    const at = byId(id);
    watcher.unobserve(at);
    waiting.delete(id);
    at.hidden = traces.length === 0;
    if (at.hidden) { Plotly.purge(at); at.replaceChildren(); return; }
    at.setAttribute("role", "img");
    at.setAttribute("aria-label", `${title}: ${traces.map((t) => t.name).join(", ")}`);
    at.style.minHeight = `${more.height ?? 300}px`;
    waiting.set(id, () => Plotly.react(at, traces, layout(title, x, y, traces, more, at.clientWidth),
      { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"] }));
    if (isFirstSeen(at)) drawNow(id);
    else watcher.observe(at);
  }

  const errors = (figures) => ({
    type: "data", symmetric: false, thickness: 1.5, width: 4, color: styled("--ink"),
    array: figures.map((f) => (f.high === null ? 0 : f.high - f.value)),
    arrayminus: figures.map((f) => (f.low === null ? 0 : f.value - f.low)),
  });

  function ratios(id, title, key, dots, ideal, one = (c) => 1) {
    const found = visible().filter((c) => c[key]);
    const lines = grouped(found);
    // Hollow: nobody measured it.
    const played = data.rehearsals.filter((c) => shown.model.has(String(c.model)));
    const most = Math.max(1, ...[...found, ...played].map((c) => c.devices ?? 1));
    const traces = [];
    [...lines].forEach(([name, members], i) => {
      members.sort((a, b) => a.devices - b.devices);
      // Side by side, so that no interval covers another.
      const shift = (0.05 * most * (i - (lines.size - 1) / 2)) / Math.max(lines.size - 1, 1);
      const marker = { color: colour(i), symbol: SYMBOLS[i % SYMBOLS.length], size: 9 };
      traces.push({ name: plain(name), mode: "lines+markers", marker, line: { width: 1 },
        legendgroup: String(i), x: [1, ...members.map((c) => c.devices + shift)],
        y: [1, ...members.map((c) => c[key].value)],
        error_y: errors([{ value: 1, low: 1, high: 1 }, ...members.map((c) => c[key])]) });
      const each = members.flatMap((c) => dots(c).map((y) => [c.devices, y]));
      if (each.length) {
        traces.push({ name: "rounds", mode: "markers", showlegend: false, legendgroup: String(i),
          x: each.map(([x]) => x + shift + 0.015 * most), y: each.map(([, y]) => y), hoverinfo: "y",
          marker: { color: colour(i), size: 5, opacity: 0.55 } });
      }
    });
    [...grouped(played)].forEach(([name, members], i) => {
      const figures = members.map(({ devices, speedup: { value, low, high } }) => {
        const part = (v) => (v === null ? null : v / one({ devices }));
        return { value: part(value), low: part(low), high: part(high) };
      });
      traces.push({ name: plain(name), mode: "markers", x: members.map((c) => c.devices),
        y: figures.map((f) => f.value), error_y: errors(figures),
        marker: { color: colour(lines.size + i), symbol: "circle-open", size: 11, line: { width: 2 } } });
    });
    if (traces.length) {
      traces.push({ name: "ideal", mode: "lines", x: [1, most], y: ideal(most), hoverinfo: "skip",
        line: { dash: "dash", color: "#888" } });
    }
    const devices = [...new Set([1, ...[...found, ...played].map((c) => c.devices)])];
    picture(id, title, "devices", "", traces,
      { xaxis: { tickvals: devices, range: [1 - 0.06 * most, 1.08 * most] }, yaxis: { rangemode: "tozero" } });
  }

  const series = (c) => c.configuration.replace(` x${c.devices}`, "");
  function grouped(found) {
    const lines = new Map();
    for (const c of found) lines.set(series(c), [...(lines.get(series(c)) ?? []), c]);
    return lines;
  }

  // Models of different size share no scale: each has a panel, and the first stands on top.
  const ROW = 30, GAP = 45;
  function panels(id, title, unit, found, traces, more = {}) {
    const groups = [...new Set(found.map((c) => c.model))]
      .map((model) => found.filter((c) => c.model === model));
    const most = ROW * found.length + GAP * (groups.length - 1);
    const axes = {};
    let top = most;
    const drawn = groups.flatMap((own, k) => {
      const [of, bottom] = [k ? String(k + 1) : "", top - ROW * own.length];
      const last = k === groups.length - 1;
      axes[`xaxis${of}`] = { anchor: `y${of}`, rangemode: "tozero", title: { text: last ? unit : "" } };
      axes[`yaxis${of}`] = { anchor: `x${of}`, domain: [bottom / most, top / most],
        tickvals: own.map((_, i) => -i), ticktext: own.map(label), range: [0.6 - own.length, 0.6] };
      top = bottom - GAP;
      return traces(own).map((trace) => ({ orientation: "h", xaxis: `x${of}`, yaxis: `y${of}`,
        ...trace, showlegend: Boolean(trace.showlegend) && !k }));
    });
    picture(id, title, unit, "", drawn, { height: 100 + most, ...axes, ...more });
  }
  const label = (c) => {
    const alike = configurations.filter((one) => plainLabel(one) === plainLabel(c));
    return alike.length > 1 ? escaped(c.configuration) : plainLabel(c);
  };

  function bars(id, title, unit, read, dots = () => []) {
    panels(id, title, unit, visible().filter((c) => read(c) && read(c).value !== null), (own) => {
      const each = own.flatMap((c, i) => dots(c).map((x) => [x, -i]));
      return [
        { name: title, type: "bar", y: own.map((_, i) => -i), x: own.map((c) => read(c).value),
          marker: { color: COLOURS[0], opacity: 0.75 }, error_x: errors(own.map(read)),
          hoverinfo: "x" },
        { name: "runs", mode: "markers", hoverinfo: "x", x: each.map(([x]) => x),
          y: each.map(([, y]) => y), marker: { color: COLOURS[1], size: 6 } },
      ];
    });
  }

  function stacks(id, title, found, parts) {
    const names = [...new Set(found.flatMap((c) => Object.keys(parts(c))))];
    const coloured = names.filter((name) => !(name in GREYS));
    panels(id, title, "ms a step", found, (own) => names.map((name) => ({
      name: plain(name), legendgroup: name, showlegend: true, type: "bar", hoverinfo: "x+name",
      y: own.map((_, i) => -i), x: own.map((c) => parts(c)[name] ?? 0),
      marker: name in GREYS ? { ...look(0), color: GREYS[name] } : look(coloured.indexOf(name)),
    })), { barmode: "relative" });
  }
  const plainLabel = (c) => plain(c.configuration);

  function losses(c) {
    const kept = c.budget.losses.filter((one) => Math.abs(one.ms) > 0.005 * c.budget.measured);
    const parts = c.budget.ideal === null ? { "work of the device": c.budget.work }
      : { "ideal step": c.budget.ideal };
    for (const one of kept) parts[one.name] = one.ms;
    return parts;
  }

  // A line is a run, in the colour of its configuration; models share no scale here either.
  const PANEL = 200;
  function curves(id, title, x, y, read, said = (cell) => cell.run) {
    const drawn = visible().flatMap((c) => cells
      .filter((cell) => cell.configuration === c.i && read(cell))
      .map((cell, k) => ({ model: c.model, name: label(c), legendgroup: String(c.i),
        showlegend: k === 0, mode: read(cell)[0].length < 3 ? "markers+lines" : "lines",
        x: read(cell)[0], y: read(cell)[1], hovertext: plain(`${said(cell)}, ${cell.name}`),
        line: { width: 1, color: colour(c.i), dash: DASHES[Math.floor(c.i / COLOURS.length) % 6] } })));
    const models = [...new Set(drawn.map((one) => one.model))];
    const most = PANEL * models.length + GAP * (models.length - 1);
    const annotations = [], axes = {};
    models.forEach((model, k) => {
      const [of, top] = [k ? String(k + 1) : "", 1 - k * (PANEL + GAP) / most];
      const last = k === models.length - 1;
      axes[`xaxis${of}`] = { anchor: `y${of}`, title: { text: last ? x : "" } };
      axes[`yaxis${of}`] = { anchor: `x${of}`, domain: [Math.max(0, top - PANEL / most), top],
        title: { text: y } };
      if (models.length > 1) {
        annotations.push({ text: plain(model), showarrow: false, xref: "paper", yref: "paper",
          x: 0, y: top, xanchor: "left", yanchor: "bottom" });
      }
    });
    const traces = drawn.map(({ model, ...trace }) => {
      const of = models.indexOf(model) ? String(models.indexOf(model) + 1) : "";
      return { ...trace, xaxis: `x${of}`, yaxis: `y${of}` };
    });
    picture(id, title, x, y, traces, { height: 100 + most, annotations, ...axes });
  }

  function learned() {
    const names = [...new Set(cells.flatMap((cell) => Object.keys(cell.logged)))];
    names.forEach((name, i) => {
      const id = `learned-${i}`;
      if (!byId(id)) byId("learned").append(element("figure", { id }));
      curves(id, plain(name), "step", "", (cell) => cell.logged[name]);
    });
  }

  // ---- one configuration ---------------------------------------------------------------------

  function drawChosen() {
    const place = Number(byId("chosen").value);
    const c = configurations[place];
    const own = cells.filter((cell) => cell.configuration === place);
    waterfall(c);
    stepTimes("steps", "Step time of every run and rank", own, 420);
    picture("balance", "Spread of the ranks' arrivals (CV)", "step", "%",
      own.filter((cell) => cell.balance).map((cell, run) => ({
        name: cell.run, mode: "lines+markers", x: cell.balance[0],
        y: cell.balance[1], line: { color: colour(run) } })), { yaxis: { rangemode: "tozero" } });
    const metric = byId("metric").value;
    picture("devices", `Devices: ${metric}`, "seconds since the first step began", metric,
      own.flatMap((cell, run) => cell.devices.filter((d) => d.curves[metric]).map((d, k) => ({
        name: plain(`${cell.run}, ${d.name}`), mode: "lines+markers",
        x: d.curves[metric][0], y: d.curves[metric][1], marker: { size: 4 },
        line: { color: colour(k), dash: DASHES[run % DASHES.length] } }))),
      { yaxis: { rangemode: "tozero" } });
  }

  const MOST_LINES = 6;
  function stepTimes(id, title, own, height) {
    const each = own.flatMap((cell, run) => cell.steps.map(({ rank, curve: [x, y] }) => ({
      name: `${cell.run}, rank ${rank}`, mode: "lines", x, y,
      line: { color: colour(rank), dash: DASHES[run % DASHES.length], width: 1, shape: "hv" } })));
    const steps = each.length > MOST_LINES ? band(each) : each;
    const timed = own.find((cell) => cell.timed)?.timed;
    const flat = steps.flatMap((one) => one.y).filter((y) => y > 0);
    const most = flat.reduce((a, b) => Math.max(a, b), 0);
    const least = flat.reduce((a, b) => Math.min(a, b), Infinity);
    picture(id, title, "seconds since the first step began", "ms", steps,
      { height, yaxis: most > 10 * least ? logarithmic(least, most) : {},
        shapes: timed ? [{ type: "rect", xref: "x", yref: "paper", y0: 0, y1: 1, line: { width: 0 },
          x0: timed[0], x1: timed[1], fillcolor: "#888", opacity: 0.15 }] : [] });
  }

  // Plotly's own ticks between powers of ten are their first digits alone.
  function logarithmic(least, most) {
    const powers = Array.from({ length: 2 + Math.ceil(Math.log10(most / least)) },
      (_, i) => i + Math.floor(Math.log10(least)));
    const ticks = powers.flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`)));
    return { type: "log", tickvals: ticks, ticktext: ticks.map(String) };
  }

  // The median over ranks of their own median steps, from the fastest rank to the slowest; each
  // rank is drawn where its name is clicked.
  const BINS = 60;
  function band(each) {
    const until = each.reduce((most, { x }) => Math.max(most, x.at(-1) ?? 0), 0);
    const bins = Array.from({ length: BINS }, () => []);
    for (const { x, y } of each) {
      const own = Array.from({ length: BINS }, () => []);
      x.forEach((at, i) => own[Math.max(0, Math.min(BINS - 1, Math.floor(BINS * at / until)))].push(y[i]));
      own.forEach((values, i) => { if (values.length) bins[i].push(median(values)); });
    }
    const known = bins.map((values, i) => [(i + 0.5) * until / BINS, values])
      .filter(([, values]) => values.length);
    const line = (name, read, more) => ({ name, mode: "lines", x: known.map(([at]) => at),
      y: known.map(([, values]) => read(values)), line: { color: COLOURS[0], width: 0 }, ...more });
    return [
      line("fastest rank", (values) => Math.min(...values), { showlegend: false }),
      line("fastest to slowest of all ranks", (values) => Math.max(...values), { fill: "tonexty" }),
      line("median of all ranks", median, { line: { color: COLOURS[0], width: 2 } }),
      ...each.map((one) => ({ ...one, visible: "legendonly" })),
    ];
  }
  const median = (values) => [...values].sort((a, b) => a - b)[(values.length - 1) >> 1];

  function waterfall(c) {
    if (!c?.budget || c.budget.ideal === null) { picture("waterfall", "", "", "", []); return; }
    const { ideal, measured, losses } = c.budget;
    const lost = losses.filter((one) => Math.abs(one.ms) > 1e-4 * measured);
    picture("waterfall", `From the ideal step to the measured one: ${plain(c.configuration)}`, "", "ms",
      [{ name: "budget", type: "waterfall", showlegend: false, textposition: "outside",
        measure: ["absolute", ...lost.map(() => "relative"), "total"],
        x: ["ideal", ...lost.map((one) => plain(one.name)), "measured"],
        y: [ideal, ...lost.map((one) => one.ms), measured],
        text: [ideal, ...lost.map((one) => one.ms), measured].map((v) => v.toPrecision(3)),
        hovertext: ["", ...lost.map((one) => escaped(one.why)), ""],
        increasing: { marker: { color: COLOURS[5] } }, decreasing: { marker: { color: COLOURS[2] } },
        totals: { marker: { color: COLOURS[0] } } }], { height: 420 });
  }

  function makeChoices() {
    const metrics = [...new Set(cells.flatMap((cell) =>
      cell.devices.flatMap((d) => Object.keys(d.curves))))];
    byId("metric").append(...metrics.map((name) => element("option", { textContent: name })));
    byId("metric").parentElement.hidden = metrics.length === 0;
    for (const id of ["chosen", "metric"]) byId(id).addEventListener("change", drawChosen);
  }

  function updateChoices() {
    const before = byId("chosen").value;
    const found = visible();
    byId("chosen").replaceChildren(...found.map((c) =>
      element("option", { value: c.i, textContent: c.configuration })));
    const first = found.find((c) => c.budget && c.budget.ideal !== null) ?? found[0];
    const kept = found.some((c) => String(c.i) === before);
    if (first) byId("chosen").value = kept ? before : first.i;
    drawChosen();
  }

  // ---- cells ---------------------------------------------------------------------------------

  function rowsOf(rows) {
    return element("div", { className: "scroll" }, element("table", {}, element("tbody", {},
      ...rows.map((row) => element("tr", {},
        ...row.map((text) => element("td", { textContent: text })))))));
  }

  function cellPage(cell) {
    const parts = [rowsOf(cell.facts)];
    if (cell.failure) parts.unshift(element("p", { textContent: cell.failure }));
    if (cell.differs.length) {
      parts.push(element("p", { textContent: "Differs from its baseline (here, there):" }),
        rowsOf(cell.differs));
    }
    if (cell.steps.length) {
      const at = element("figure", { id: `steps-of-${cells.indexOf(cell)}` });
      parts.push(at);
      queueMicrotask(() => stepTimes(at.id, "Step time of every rank", [cell], 300));
    }
    if (cell.log.length) {
      parts.push(element("p", { textContent: "End of its log:" }),
        element("pre", { textContent: cell.log.join("\n") }));
    }
    return parts;
  }

  function drawCells() {
    const kept = new Set(visible().map((c) => c.i));
    const found = cells.filter((cell) => kept.has(cell.configuration));
    const rows = found.slice(0, MOST_CELLS).map((cell) => {
      const row = configurations[cell.configuration].configuration;
      const made = element("details", {}, element("summary", {
        textContent: `${cell.name} (${row}, ${cell.run}): ${cell.state}` }));
      made.addEventListener("toggle", () => {
        if (made.open && made.children.length === 1) made.append(...cellPage(cell));
      });
      return made;
    });
    const more = found.length - rows.length;
    byId("cells").replaceChildren(...rows);
    if (more > 0) byId("cells").append(`and ${more} more: choose fewer above`);
  }

  function filterTables() {
    // A row begins with its configuration's label, or with its cell's name.
    const named = [...configurations.map((c) => [c.configuration, c]),
      ...cells.map((cell) => [cell.name, configurations[cell.configuration]])];
    for (const row of document.querySelectorAll("tr[data-row]")) {
      const own = named.filter(([name]) => row.dataset.row.startsWith(name))
        .sort(([a], [b]) => b.length - a.length)[0];
      row.hidden = own !== undefined && !passes(own[1]);
    }
  }

  // ---- all of it -----------------------------------------------------------------------------

  function draw() {
    const found = visible();
    ratios("speedup", "Speedup over one device", "speedup_ratio", (c) => c.speedups, (most) => [1, most]);
    ratios("efficiency", "Efficiency", "efficiency_ratio",
      (c) => c.speedups.map((s) => s / c.devices), () => [1, 1], (c) => c.devices);
    bars("rate", "Samples/s of all devices", "samples/s", (c) => c.global_samples_per_s,
      (c) => c.rates);
    if (found.some((c) => c.usd_per_million_samples)) {
      bars("cost", "Cost of a million samples", "USD", (c) => c.usd_per_million_samples);
    } else {
      bars("cost", "Cost a sample at equal prices", "times that on one device",
        (c) => c.sample_cost_ratio);
    }
    stacks("budget", "Budget of losses", found.filter((c) => c.budget), losses);
    stacks("anatomy", "Phases of a step", found.filter((c) => c.anatomy), (c) => c.anatomy.phases);
    bars("memory", "Peak memory of a device", "MiB", (c) => c.peak_memory_per_device_mib);
    bars("energy", "Energy of a million samples", "J",
      (c) => c.energy_j_per_million_samples);
    learned();
    const loss = (key) => (cell) => cell.loss?.[key];
    const called = (cell) => cell.loss.name;
    curves("loss-samples", "Loss over samples", "samples", "loss", loss("over_samples"), called);
    curves("loss-seconds", "Loss over time", "seconds since the first step", "loss",
      loss("over_seconds"), called);
    updateChoices();
    drawCells();
    filterTables();
    document.body.dataset.configurations = found.length;
  }

  async function unpackPlotly() {
    const packed = Uint8Array.from(atob(byId("plotly").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    document.head.append(element("script", { textContent: await new Response(stream).text() }));
    byId("plotly").remove();
  }

  for (const link of document.querySelectorAll("#answer a")) {
    link.addEventListener("click", () => { byId(link.hash.slice(1)).open = true; });
  }
  makeFilters();
  makeChoices();
  if (window.DecompressionStream === undefined) {
    byId("filters").append("Found a browser from before 2023, which draws no picture of this page.");
  } else {
    // A page is printed once it has loaded, which it has not before its frames have.
    const frame = document.body.appendChild(element("iframe", { hidden: true }));
    frame.contentDocument.open();
    unpackPlotly().then(() => {
      draw();
      dark.addEventListener("change", draw);
    }).finally(() => frame.remove());
  }
})();
