// Decisions and jobs in words.

const plural = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;
const hoursText = (h) => (h < 1 ? `${Math.round(60 * h)} min` : h < 48 ? `${h.toFixed(1)} h` : `${(h / 24).toFixed(1)} d`);
const clockText = (t) => `day ${Math.floor(t / 24) + 1}, ${String(Math.floor(t % 24)).padStart(2, "0")}:${String(Math.floor((t * 60) % 60)).padStart(2, "0")}`;

function jobText(episode, job, numbered = true) {
  return `${episode.classes[episode.jobs.class[job]]}${numbered ? ` #${job}` : ""}, ${plural(episode.jobs.gpus[job], "GPU")}`;
}

function racksText(racks) {
  const shown = [...new Set(racks.filter((rack) => rack >= 0))];
  const text = shown.slice(0, 8).join(", ") + (shown.length > 8 ? ", …" : "");
  return `${shown.length === 1 ? "rack" : "racks"} ${text}`;
}

/** What was decided, and why: {what, why, evicts}. */
function decisionText(d) {
  const sure = d.sure === null ? "" : `; the network gave it ${Math.round(100 * d.sure)} %`;
  if (d.kind === HOLD) return { what: "waits", why: holdReason(d) + sure, evicts: "" };
  if (d.kind === 2) return { what: "spread over the holes of several racks", why: `${plural(d.places, "rack")} would fit${sure}`, evicts: "" };
  const evicts = [d.evicted ? `evicts ${plural(d.evicted, "job")}` : "", d.moved ? `moves ${plural(d.moved, "job")}` : ""].filter(Boolean).join(", ");
  if (d.kind === 1) return { what: `opens ${racksText(d.racks)}`, why: `room enough, but no shape${sure}`, evicts };
  return { what: `to ${racksText(d.racks)}`, why: placeReason(d) + sure, evicts };
}

function placeReason(d) {
  if (d.parts > 1) return `${d.parts} parts; ${plural(d.places, "rack")} fit the first`;
  if (d.places === 1) return "the only rack that fits";
  if (d.least === d.most) return `${d.places} racks fit, all with ${d.free} GPUs free`;
  if (d.free === d.least) return `the fullest of ${d.places} that fit, ${d.free} GPUs free`;
  if (d.free === d.most) return `the emptiest of ${d.places} that fit, ${d.free} GPUs free`;
  return `${d.places} racks fit; ${d.free} GPUs free here, ${d.least} to ${d.most} in all`;
}

function holdReason(d) {
  const could = d.places > 0 ? `${plural(d.places, "rack")} would fit` : `${plural(d.opens, "rack")} could be opened`;
  if (d.hero < 0) return `although ${could}`;
  const start = d.shadow === null ? "" : `, which can start in ${hoursText(Math.max(0, d.shadow - d.time))} by estimates`;
  return `although ${could}: racks are kept for job #${d.hero}${start}`;
}
