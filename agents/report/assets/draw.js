// Pictures on canvas: the racks of one policy, and the timeline of both.

const RACKS_PER_ROW = 36, FRESH = 2; // hours for which an eviction stays marked
const TIMELINE = 236; // px, its height
const RED = "#c8102e", INK = "#16202c", SOFT = "#57636f", LINE = "#dfe4e9";

/** Fit a canvas to its box in device pixels; the context draws in CSS pixels. */
function fit(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width };
}

/** Begin a path through points [x, y]. */
function path(context, points) {
  context.beginPath();
  for (const [x, y] of points) context.lineTo(x, y);
}

function line(context, points, colour, width = 1) {
  Object.assign(context, { strokeStyle: colour, lineWidth: width });
  path(context, points);
  context.stroke();
}

function write(context, text, x, y, align, colour = SOFT) {
  Object.assign(context, { textAlign: align, fillStyle: colour });
  context.fillText(text, x, y);
}

class RackMap {
  constructor(canvas, episode, colours) {
    Object.assign(this, { canvas, episode, colours });
    this.first = [];
    let node = 0;
    for (const size of episode.racks) { this.first.push(node); node += size; }
    this.nodes = node;
    this.rackOf = episode.racks.flatMap((size, rack) => Array(size).fill(rack));
  }

  /** Where every rack stands: rows of racks, a wider gap between blocks. Returns the height of all. */
  #layout(width) {
    const { racks, blocks, width: gpus } = this.episode;
    const rows = Math.ceil(racks.length / RACKS_PER_ROW), perRow = Math.ceil(racks.length / rows);
    const gap = perRow > 20 ? 3 : 5, between = 12, tall = Math.max(...racks);
    const jumps = (from, to) => { let n = 0; for (let r = from + 1; r < to; r++) n += blocks[r] !== blocks[r - 1]; return n; };
    let most = 0;
    for (let row = 0; row < rows; row++) most = Math.max(most, jumps(row * perRow, Math.min(racks.length, (row + 1) * perRow)));
    const cell = Math.max(1, (width - (perRow - 1) * gap - most * between) / (perRow * gpus));
    const high = rows > 1 ? 5 : Math.min(13, Math.max(8, cell * 1.6)), step = tall * high + 30;
    this.place = racks.map((_, rack) => {
      const row = Math.floor(rack / perRow), start = row * perRow;
      return { x: (rack - start) * (gpus * cell + gap) + jumps(start, rack + 1) * between, y: 12 + row * step };
    });
    Object.assign(this, { cell, high, wide: cell - (cell >= 5 ? 1 : 0.25), tall: high - 1.5 });
    return rows * step + 6;
  }

  /** The upper left corners of the GPUs of spans. */
  *#boxes(spans) {
    const { width: gpus } = this.episode;
    for (const slot of slots(spans)) {
      const node = Math.floor(slot / gpus), rack = this.rackOf[node], at = this.place[rack];
      yield { x: at.x + (slot % gpus) * this.cell, y: at.y + (node - this.first[rack]) * this.high };
    }
  }

  draw(recording, t, chosen) {
    const { width: gpus, node_gpus } = this.episode;
    const { context } = fit(this.canvas, this.#layout(this.canvas.clientWidth));
    const down = recording.downAt(t), { now, lost } = recording.runsAt(t, FRESH);
    this.on = new Int32Array(this.nodes * gpus).fill(-1);
    for (let node = 0; node < this.nodes; node++) {
      this.#fill(context, [node * gpus, node_gpus[node]], down.get(node) > 0 ? "#c2c9d0" : "#e9edf0");
    }
    const { job: jobs, gpus: spans } = recording.runs;
    for (const run of now) {
      this.#fill(context, spans[run], this.colours[this.episode.jobs.class[jobs[run]]]);
      for (const slot of slots(spans[run])) this.on[slot] = run;
    }
    for (const run of lost) this.#ring(context, spans[run], RED, 1 - (t - recording.runs.end[run]) / FRESH);
    for (const run of now) if (jobs[run] === chosen) this.#ring(context, spans[run], "#000", 1);
    this.#labels(context, recording.decisionsUntil(t, 1)[0], t);
  }

  #fill(context, spans, colour) {
    context.fillStyle = colour;
    for (const { x, y } of this.#boxes(spans)) context.fillRect(x, y, this.wide, this.tall);
  }

  #ring(context, spans, colour, strength) {
    Object.assign(context, { strokeStyle: colour, globalAlpha: Math.max(0.15, strength), lineWidth: 1.6 });
    for (const { x, y } of this.#boxes(spans)) context.strokeRect(x + 0.4, y + 0.4, this.wide - 0.8, this.tall - 0.8);
    context.globalAlpha = 1;
  }

  /** Rack numbers below, and a pointer above the racks of the last decision. */
  #labels(context, decision, t) {
    const { racks, width: gpus } = this.episode, every = this.cell * gpus < 15 ? 4 : 1;
    context.font = "10.5px system-ui, sans-serif";
    const foot = Math.max(...racks) * this.high + 11;
    this.place.forEach((at, rack) => {
      if (rack % every === 0) write(context, rack, at.x + (gpus * this.cell) / 2, at.y + foot, "center");
    });
    if (!decision || t - decision.time > FRESH) return;
    context.fillStyle = decision.evicted ? RED : INK;
    for (const rack of decision.racks.filter((each) => each >= 0)) {
      const x = this.place[rack].x + (gpus * this.cell) / 2, y = this.place[rack].y - 3;
      path(context, [[x - 5, y - 7], [x + 5, y - 7], [x, y]]);
      context.fill();
    }
  }

  /** What lies under a point of the canvas: {rack, node, run}; null: nothing. */
  at(x, y) {
    const { racks, width: gpus } = this.episode;
    for (let rack = 0; rack < racks.length; rack++) {
      const g = Math.floor((x - this.place[rack].x) / this.cell), node = Math.floor((y - this.place[rack].y) / this.high);
      if (g >= 0 && g < gpus && node >= 0 && node < racks[rack]) {
        return { rack, node, run: this.on[(this.first[rack] + node) * gpus + g] };
      }
    }
    return null;
  }
}

class Timeline {
  constructor(canvas, episode, recordings, strokes) {
    Object.assign(this, { canvas, episode, recordings, strokes });
    this.left = 58;
    this.lanes = [
      { title: `free slots of ${episode.slice} nodes`, steps: true, series: recordings.map((r) => [r.samples.time, r.samples.slots]) },
      { title: "GPUs waiting", steps: true, series: recordings.map((r) => [r.waiting.times, r.waiting.gpus]) },
      { title: "cost so far", steps: false, series: recordings.map((r) => [r.samples.time, r.samples.time.map((t) => r.costAt(t))]) },
    ];
    for (const lane of this.lanes) lane.most = Math.max(1e-9, ...lane.series.map(([, values]) => values.reduce((a, b) => Math.max(a, b), 0)));
  }

  x(t) { return this.left + (t / this.episode.hours) * (this.canvas.clientWidth - this.left - 8); }
  hour(x) { return Math.min(1, Math.max(0, (x - this.left) / (this.canvas.clientWidth - this.left - 8))) * this.episode.hours; }

  draw(t) {
    const height = TIMELINE, { context, width } = fit(this.canvas, height);
    if (!this.still || this.still.width !== this.canvas.width) {
      this.still = Object.assign(document.createElement("canvas"), { width: this.canvas.width, height: this.canvas.height });
      const still = this.still.getContext("2d"), ratio = window.devicePixelRatio || 1;
      still.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.#background(still, width, height);
    }
    context.drawImage(this.still, 0, 0, width, height);
    line(context, [[this.x(t), 4], [this.x(t), height - 18]], INK);
  }

  #background(context, width, height) {
    const foot = 46, each = (height - foot) / this.lanes.length;
    context.font = "11px system-ui, sans-serif";
    if (this.episode.from > 0) {
      context.fillStyle = "#f1f4f6";
      context.fillRect(this.x(0), 2, this.x(this.episode.from) - this.x(0), height - 20);
      write(context, "warm-up", this.x(this.episode.from) - 5, 1.5 * each + 8, "right");
    }
    this.#days(context, height);
    this.lanes.forEach((lane, k) => this.#lane(context, lane, k * each + 16, each - 20));
    this.recordings.forEach((recording, k) => {
      context.fillStyle = this.strokes[k].colour;
      const y = height - foot + 6 + k * 9;
      for (const end of recording.evictions) context.fillRect(this.x(end) - 0.5, y, 1.2, 7);
    });
    write(context, "evictions", this.left - 4, height - foot + 17, "right");
  }

  #days(context, height) {
    const days = this.episode.hours / 24, every = days > 21 ? 7 : days > 10 ? 2 : 1;
    for (let day = 0; day <= days; day += every) {
      const x = this.x(24 * day);
      line(context, [[x, 4], [x, height - 18]], LINE);
      write(context, `day ${day + 1}`, Math.min(x, this.canvas.clientWidth - 24), height - 5, "center");
    }
  }

  #lane(context, lane, top, tall) {
    const y = (value) => top + tall - (value / lane.most) * tall;
    Object.assign(context, { strokeStyle: "#b8c1ca", lineWidth: 1 });
    context.strokeRect(this.left, y(0), this.canvas.clientWidth - this.left - 8, 0);
    write(context, "0", this.left - 5, y(0) + 3, "right");
    const most = lane.most >= 100 ? Math.round(lane.most) : lane.steps ? lane.most : lane.most.toFixed(2);
    write(context, most, this.left - 5, top + 8, "right");
    lane.series.forEach(([times, values], k) => {
      const points = times.map((t, at) => [this.x(t), y(values[at])]);
      const corners = points.map(([x], at) => [x, points[Math.max(0, at - 1)][1]]);
      context.setLineDash(this.strokes[k].dash);
      line(context, lane.steps ? points.flatMap((point, at) => [corners[at], point]) : points, this.strokes[k].colour, 1.5);
    });
    context.setLineDash([]);
    context.font = "600 11px system-ui, sans-serif";
    const wide = context.measureText(lane.title).width;
    context.fillStyle = "rgba(255, 255, 255, .85)";
    context.fillRect(this.left + 4, top - 12, wide + 8, 15);
    write(context, lane.title, this.left + 8, top - 1, "left", INK);
    context.font = "11px system-ui, sans-serif";
  }
}
