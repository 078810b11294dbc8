"use strict";
// What is the case at an hour of a recorded episode. Nothing here touches the page.

/** The last index whose value is at most x; -1: none. Values ascend. */
function lastAtMost(values, x) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) low = middle + 1; else high = middle;
  }
  return low - 1;
}

/** The GPU slots of spans first, count, first, count, ... */
function* slots(spans) {
  for (let k = 0; k < spans.length; k += 2) for (let s = 0; s < spans[k + 1]; s++) yield spans[k] + s;
}

const ascending = (a, b) => a - b;
const EVICTED = 1, FAILED = 3, RUNNING = 4; // how a run ended, or did not
const HOLD = 3; // the kind of a decision

class Recording {
  constructor(episode, { label, runs, samples, decisions }) {
    Object.assign(this, { episode, label, runs, samples });
    this.runsOf = new Map();
    this.runs.job.forEach((job, run) => {
      if (!this.runsOf.has(job)) this.runsOf.set(job, []);
      this.runsOf.get(job).push(run);
    });
    this.waits = this.#waits();
    this.evictions = runs.end.filter((_, run) => runs.ended[run] === EVICTED).sort(ascending);
    this.decisions = Recording.#grouped(decisions);
    this.decisionTimes = this.decisions.map((d) => d.time);
    this.waiting = this.#waitingSteps();
  }

  /** Every stay of a job in the queue: {job, from, to}, by from. */
  #waits() {
    const { submit } = this.episode.jobs, end = this.episode.hours, found = [];
    for (let job = 0; job < submit.length; job++) {
      if (submit[job] >= end) continue;
      let since = submit[job];
      for (const run of this.runsOf.get(job) ?? []) {
        if (since !== null && this.runs.start[run] > since) found.push({ job, from: since, to: this.runs.start[run] });
        since = [EVICTED, FAILED].includes(this.runs.ended[run]) ? this.runs.end[run] : null; // back to the queue
      }
      if (since !== null && since < end) found.push({ job, from: since, to: end });
    }
    return found.sort((a, b) => a.from - b.from || a.job - b.job);
  }

  /** Slices of one job placed at one moment are one decision with several racks. */
  static #grouped(columns) {
    const found = [];
    for (let k = 0; k < columns.time.length; k++) {
      const row = Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[k]]));
      const last = found.at(-1);
      if (last && last.time === row.time && last.job === row.job && row.kind !== HOLD) {
        last.racks.push(row.rack);
        last.parts += 1;
        last.kind = Math.max(last.kind === 2 ? 0 : last.kind, row.kind);
        last.evicted += row.evicted;
        last.moved += row.moved;
      } else found.push({ ...row, racks: [row.rack], parts: 1 });
    }
    return found;
  }

  /** GPUs that wait, as steps: {times, gpus}. */
  #waitingSteps() {
    const changes = new Map(), { gpus } = this.episode.jobs;
    for (const { job, from, to } of this.waits) {
      changes.set(from, (changes.get(from) ?? 0) + gpus[job]);
      if (to < this.episode.hours) changes.set(to, (changes.get(to) ?? 0) - gpus[job]);
    }
    const times = [...changes.keys()].sort(ascending);
    let total = 0;
    return { times, gpus: times.map((t) => (total += changes.get(t))) };
  }

  /** Runs on GPUs at hour t, and those evicted within the last `fresh` hours. At the very end, what ran until then. */
  runsAt(t, fresh) {
    const now = [], lost = [], { start, end, ended } = this.runs, last = t >= this.episode.hours;
    for (let run = 0; run < start.length && start[run] <= t; run++) {
      if (t < end[run] || (last && ended[run] === RUNNING)) now.push(run);
      else if (ended[run] === EVICTED && t - end[run] < fresh) lost.push(run);
    }
    return { now, lost };
  }

  /** The queue at hour t, in its order: [{job, since}]. */
  queueAt(t) {
    const { priority } = this.episode.jobs, found = [], last = t >= this.episode.hours;
    for (const wait of this.waits) {
      if (wait.from > t) break;
      if (t < wait.to || (last && wait.to === this.episode.hours)) found.push({ job: wait.job, since: wait.from });
    }
    return found.sort((a, b) => priority[b.job] - priority[a.job] || a.job - b.job);
  }

  /** Free GPUs on nodes that take pods, and free slices of whole nodes inside racks, at hour t. */
  freeAt(t) {
    const { racks, width, node_gpus, slice } = this.episode, down = this.downAt(t), left = [...node_gpus];
    for (const run of this.runsAt(t, 0).now) for (const slot of slots(this.runs.gpus[run])) left[Math.floor(slot / width)] -= 1;
    let gpus = 0, free = 0, node = 0;
    for (const size of racks) {
      let whole = 0;
      for (const last = node + size; node < last; node++) {
        if (down.get(node) > 0) continue;
        gpus += left[node];
        whole += left[node] === width;
      }
      free += Math.floor(whole / slice);
    }
    return { gpus, slots: free };
  }

  /** A column of the samples at hour t: a step, or for totals a line. */
  sampleAt(name, t, line = false) {
    const { time } = this.samples, values = this.samples[name], k = Math.max(0, lastAtMost(time, t));
    if (!line || k + 1 >= time.length) return values[k];
    return values[k] + ((values[k + 1] - values[k]) * Math.max(0, t - time[k])) / (time[k + 1] - time[k]);
  }

  /** GPU-hours of cost until t per GPU-hour of the whole counted window: at the end, the episode's cost. */
  costAt(t) {
    const { hours, from, capacity } = this.episode;
    const total = ["waiting", "slowdown", "lost"].reduce((sum, name) => sum + this.sampleAt(name, t, true), 0);
    return total / ((hours - from) * capacity);
  }

  /** Mean wait until t of the jobs submitted since counting began, of heroes or of all others; null: there is none. */
  meanWait(t, heroes) {
    const { jobs, from, hero } = this.episode;
    const counts = (job) => jobs.submit[job] >= from && jobs.submit[job] < this.episode.hours && jobs.gpus[job] >= hero === heroes;
    let n = 0, total = 0;
    for (let job = 0; job < jobs.submit.length && jobs.submit[job] <= t; job++) n += counts(job);
    for (const wait of this.waits) {
      if (wait.from > t) break;
      if (counts(wait.job)) total += Math.min(t, wait.to) - wait.from;
    }
    return n ? total / n : null;
  }

  /** The last decisions up to t, the latest first. */
  decisionsUntil(t, count) {
    const last = lastAtMost(this.decisionTimes, t);
    return this.decisions.slice(Math.max(0, last + 1 - count), last + 1).reverse();
  }

  /** Nodes that take no pods at hour t. */
  downAt(t) {
    const down = new Map(this.episode.cordoned.map((node) => [node, 1]));
    for (const [time, node, change] of this.episode.node_events) {
      if (time > t) break;
      down.set(node, (down.get(node) ?? 0) + change);
    }
    return down;
  }
}
