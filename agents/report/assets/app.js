// The replay on the page: controls, panels, keyboard.

const element = (id) => document.getElementById(id);

const STROKES = [{ colour: "#0072b2", dash: [] }, { colour: "#4a5560", dash: [6, 3] }];
const QUEUE_ROWS = 9, LOG_ROWS = 9;

class Panel {
  constructor(recording, episode, colours, stroke, choose) {
    Object.assign(this, { recording, episode, colours, choose });
    this.element = document.createElement("div");
    this.element.className = "panel";
    this.element.innerHTML = `<h3><i style="border-top-color:${stroke.colour};border-top-style:${stroke.dash.length ? "dashed" : "solid"}"></i><span></span></h3>
      <canvas role="img"></canvas><div class="stats"></div>`;
    this.lists = document.createElement("div");
    this.lists.className = "lists";
    this.lists.innerHTML = `<div><h4 class="waiting"></h4><ol class="queue"></ol></div><div><h4>decided, the latest first</h4><ol class="log"></ol></div>`;
    this.element.querySelector("h3 span").textContent = recording.label;
    const canvas = this.element.querySelector("canvas");
    canvas.setAttribute("aria-label", `Racks under ${recording.label}, coloured by job class`);
    this.map = new RackMap(canvas, episode, colours);
    canvas.addEventListener("mousemove", (event) => this.#tip(event));
    canvas.addEventListener("mouseleave", () => (element("tip").hidden = true));
    canvas.addEventListener("click", (event) => {
      const found = this.map.at(event.offsetX, event.offsetY);
      choose(found?.run >= 0 ? recording.runs.job[found.run] : -1);
    });
    this.lists.addEventListener("click", (event) => {
      const row = event.target.closest("[data-job]");
      if (row) choose(Number(row.dataset.job));
    });
  }

  draw(t, chosen) {
    this.t = t;
    this.map.draw(this.recording, t, chosen);
    const queue = this.recording.queueAt(t);
    this.#stats(t, queue);
    this.#queue(t, queue, chosen);
    this.#log(t, chosen);
  }

  /** Everything the panel says in numbers at hour t. */
  numbers(t, queue = this.recording.queueAt(t)) {
    const { recording: r, episode } = this, free = r.freeAt(t);
    return {
      slots: free.slots,
      free: free.gpus,
      waitingJobs: queue.length,
      waitingGpus: queue.reduce((sum, { job }) => sum + episode.jobs.gpus[job], 0),
      cost: r.costAt(t),
      heroWait: r.meanWait(t, true),
      otherWait: r.meanWait(t, false),
      evictions: lastAtMost(r.evictions, t) + 1,
    };
  }

  #stats(t, queue) {
    const n = this.numbers(t, queue), wait = (h) => (h === null ? "–" : hoursText(h));
    const shown = [
      [n.slots, `${this.episode.slice}-node slots`], [n.free, "free GPUs"], [queue.length, "jobs wait"], [n.waitingGpus, "GPUs wait"],
      [wait(n.heroWait), "heroes waited"], [wait(n.otherWait), "others waited"], [n.evictions, "evictions"], [n.cost.toFixed(3), "cost so far"],
    ];
    this.element.querySelector(".stats").innerHTML = shown.map(([value, what]) => `<div><b>${value}</b><span>${what}</span></div>`).join("");
  }

  #chip(job) { return `<i class="chip" style="background:${this.colours[this.episode.jobs.class[job]]}"></i>`; }

  #queue(t, queue, chosen) {
    this.lists.querySelector(".waiting").textContent = queue.length ? "waiting, first in line on top" : "nobody waits";
    const rows = queue.slice(0, queue.length > QUEUE_ROWS ? QUEUE_ROWS - 1 : QUEUE_ROWS).map(({ job, since }) =>
      `<li class="job${job === chosen ? " chosen" : ""}" data-job="${job}"><span title="job #${job}">${this.#chip(job)}${jobText(this.episode, job, false)}</span><span>${hoursText(t - since)}</span></li>`);
    if (queue.length > QUEUE_ROWS) rows.push(`<li><span>and ${queue.length - QUEUE_ROWS + 1} more</span></li>`);
    this.lists.querySelector(".queue").innerHTML = rows.join("");
  }

  #log(t, chosen) {
    this.lists.querySelector(".log").innerHTML = this.recording.decisionsUntil(t, LOG_ROWS).map((d) => {
      const { what, why, evicts } = decisionText(d);
      const lost = evicts ? ` <span class="evicts">${evicts}</span>` : "";
      return `<li class="job${d.job === chosen ? " chosen" : ""}" data-job="${d.job}"><time>${d.time.toFixed(1)} h</time>${this.#chip(d.job)}${jobText(this.episode, d.job)}: ${what}${lost} <em>(${why})</em></li>`;
    }).join("");
  }

  #tip(event) {
    const tip = element("tip"), found = this.map.at(event.offsetX, event.offsetY);
    tip.hidden = !found;
    if (!found) return;
    const { runs } = this.recording, where = `rack ${found.rack}, node ${found.node}`;
    tip.textContent = found.run < 0 ? `${where}: free` : `${where}\n${jobText(this.episode, runs.job[found.run])}\nruns since ${hoursText(this.t - runs.start[found.run])}, ${hoursText(Math.max(0, runs.end[found.run] - this.t))} to go`;
    tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 14}px`;
  }
}

class Replay {
  constructor(data) {
    const { episode, colours } = data;
    this.episode = episode;
    this.t = Math.min(episode.hours, data.start);
    this.chosen = -1;
    this.recordings = data.policies.map((policy) => new Recording(episode, policy));
    this.panels = this.recordings.map((r, k) => new Panel(r, episode, colours, STROKES[k], (job) => this.choose(job)));
    element("panels").append(...this.panels.map((panel) => panel.element));
    element("details").append(...this.panels.map((panel) => panel.lists));
    const timeline = element("timeline"), go = (event) => this.seek(this.timeline.hour(event.offsetX));
    this.timeline = new Timeline(timeline, episode, this.recordings, STROKES);
    this.slider = element("time");
    this.slider.max = episode.hours;
    this.slider.addEventListener("input", () => this.seek(Number(this.slider.value)));
    element("legend").innerHTML = episode.classes.map((name, k) => `<li><i style="background:${colours[k]}"></i>${name}</li>`).join("")
      + `<li><i style="background:#e9edf0"></i>free</li><li><i class="ring"></i>just evicted</li>` + (episode.node_events.length || episode.cordoned.length ? `<li><i class="down"></i>down or cordoned</li>` : "");
    element("play").addEventListener("click", () => this.toggle());
    element("to-hero").addEventListener("click", () => this.next(this.heroes));
    element("to-eviction").addEventListener("click", () => this.next(this.evictions));
    timeline.addEventListener("pointerdown", (event) => { timeline.setPointerCapture(event.pointerId); go(event); });
    timeline.addEventListener("pointermove", (event) => event.buttons && go(event));
    document.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(element("panels"));
    const starts = this.recordings.flatMap((r) => r.runs.start.filter((_, run) => episode.jobs.gpus[r.runs.job[run]] >= episode.hero));
    this.heroes = starts.sort(ascending);
    this.evictions = this.recordings.flatMap((r) => r.evictions).sort(ascending);
    this.draw();
  }

  choose(job) {
    this.chosen = this.chosen === job ? -1 : job;
    this.draw();
  }

  seek(t) {
    this.t = Math.min(this.episode.hours, Math.max(0, t));
    this.draw();
  }

  next(times) {
    const found = times.find((time) => time > this.t + 1e-6);
    if (found !== undefined) this.seek(found);
  }

  toggle() {
    this.playing = !this.playing;
    if (this.playing && this.t >= this.episode.hours) this.t = 0;
    const button = element("play");
    button.textContent = this.playing ? "❚❚" : "▶";
    button.setAttribute("aria-label", this.playing ? "Pause" : "Play");
    this.last = undefined;
    if (this.playing) requestAnimationFrame((now) => this.frame(now));
  }

  frame(now) {
    if (!this.playing) return;
    const speed = Number(element("speed").value);
    this.t = Math.min(this.episode.hours, this.t + (speed * Math.min(100, now - (this.last ?? now))) / 1000);
    this.last = now;
    this.draw();
    if (this.t >= this.episode.hours) this.toggle();
    else requestAnimationFrame((later) => this.frame(later));
  }

  draw() {
    this.slider.value = this.t;
    this.slider.setAttribute("aria-valuetext", clockText(this.t));
    element("clock").textContent = `${clockText(this.t)}  (${this.t.toFixed(1)} h)`;
    for (const panel of this.panels) panel.draw(this.t, this.chosen);
    this.timeline.draw(this.t);
  }

  key(event) {
    const typing = ["SELECT", "BUTTON"].includes(event.target.tagName);
    if (event.ctrlKey || event.metaKey || event.altKey || (typing && [" ", "Enter"].includes(event.key))) return;
    const step = event.shiftKey ? 12 : 1;
    const actions = {
      " ": () => this.toggle(), ArrowLeft: () => this.seek(this.t - step), ArrowRight: () => this.seek(this.t + step),
      Home: () => this.seek(0), End: () => this.seek(this.episode.hours),
      h: () => this.next(this.heroes), e: () => this.next(this.evictions), Escape: () => this.choose(this.chosen),
    };
    const action = actions[event.key];
    if (!action || (event.target.tagName === "SELECT" && event.key.startsWith("Arrow"))) return;
    event.preventDefault();
    action();
  }
}

const data = JSON.parse(element("data").textContent);
if (data.policies) window.replay = new Replay(data);
