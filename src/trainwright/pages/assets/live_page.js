"use strict";
/* Controls to a question, a question to the server, its answer to words and to a page in a frame. */

const WAIT_MS = 160;        // after the last move of a slider
const QUICK_S = 2.5;        // for a first answer; a search that needs longer goes on from there
const RANGE = 16;           // memory and bandwidth: from a sixteenth to sixteen times the catalog's
const TIME_PARTS = {
  compute: "compute", recompute: "recomputation", tensor: "tensor parallelism",
  context: "context parallelism", expert: "expert parallelism", data: "data parallelism",
  transfers: "pipeline transfers", bubble: "bubble", optimizer: "optimizer", overhead: "overhead",
};
const at = (id) => document.getElementById(id);

class Explorer {
  constructor(choices) {
    this.choices = choices;
    this.config = null;
    this.last = this.before = null;  // figures of this plan and of that for the question before
    fill(at("model"), choices.models.map(({ name }) => name), "llama3-70b");
    fill(at("cluster"), choices.clusters.map(({ name }) => name), "dgx-h100");
    for (const name of choices.frameworks) at("framework").append(new Option(name, name));
    fill(at("target"), choices.frameworks, "megatron");
    this.listen();
    this.chooseCluster();
  }

  listen() {
    at("controls").addEventListener("submit", (event) => event.preventDefault());
    for (const id of ["devices", "memory", "bandwidth", "batch", "sequence"]) {
      at(id).addEventListener("input", () => this.changed());
    }
    at("framework").addEventListener("change", () => this.changed());
    at("model").addEventListener("change", () => { this.forget(); this.changed(); });
    at("cluster").addEventListener("change", () => this.chooseCluster());
    at("reset").addEventListener("click", () => this.chooseCluster(false));
    at("config").addEventListener("change", () => this.readConfig());
    at("forget").addEventListener("click", () => { this.forget(); this.changed(); });
    at("copy-command").addEventListener("click", () => this.copyCommand());
    at("export").addEventListener("click", () => this.exportPlan());
    at("theme").addEventListener("change", () => this.applyTheme());
  }

  get cluster() {
    return this.choices.clusters.find(({ name }) => name === at("cluster").value);
  }

  /** Sliders start at the catalog's figures; devices double from one node to what there can be. */
  chooseCluster(resize = true) {
    const { devices_per_node: node, most_devices: most } = this.cluster;
    if (resize) {
      const before = Number(at("devices").value) || 3;
      at("devices").min = 0;
      at("devices").max = Math.max(Math.min(Math.floor(Math.log2(most / node)), 10), 0);
      at("devices").disabled = at("devices").max === "0";
      at("devices").value = Math.min(before, Number(at("devices").max));
    }
    at("memory").value = at("bandwidth").value = 100;
    this.changed();
  }

  scaled(id, catalog) {
    const steps = Number(at(id).value) - 100;
    return steps === 0 ? catalog : catalog * RANGE ** (steps / 100);
  }

  get question() {
    const { cluster } = this, devices = cluster.devices_per_node * 2 ** Number(at("devices").value);
    const asked = {
      cluster: cluster.name,
      devices,
      global_batch: 2 ** Number(at("batch").value),
      sequence: 2 ** Number(at("sequence").value),
      memory_gib: Math.min(Math.max(this.scaled("memory", cluster.memory_gib), 1), 4096),
      bandwidth_gb_per_s: this.scaled("bandwidth", cluster.bandwidth_gb_per_s),
    };
    if (at("memory").value === "100") delete asked.memory_gib;
    if (at("bandwidth").value === "100") delete asked.bandwidth_gb_per_s;
    if (at("framework").value) asked.framework = at("framework").value;
    return { ...asked, ...(this.config ? { config: this.config } : { model: at("model").value }) };
  }

  changed() {
    const { question, cluster } = this, output = (id) => document.querySelector(`output[for=${id}]`);
    output("devices").textContent = question.devices;
    output("memory").textContent = `${(question.memory_gib ?? cluster.memory_gib).toPrecision(3)} GiB`;
    output("bandwidth").textContent = (
      `${(question.bandwidth_gb_per_s ?? cluster.bandwidth_gb_per_s).toPrecision(3)} GB/s`);
    output("batch").textContent = question.global_batch.toLocaleString("en");
    output("sequence").textContent = question.sequence.toLocaleString("en");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(question), WAIT_MS);
  }

  /** A quick answer, then the one that a longer search gives. The question before is given up,
      which the server notices. */
  async ask(question) {
    this.pending?.abort();
    this.before = this.last;
    const { signal } = this.pending = new AbortController();
    at("answer").setAttribute("aria-busy", "true");
    at("state").textContent = "planning …";
    const began = performance.now(), took = () => performance.now() - began;
    try {
      const first = await this.fetchPlan({ ...question, time_limit_s: QUICK_S }, signal);
      if (first && !first.is_complete) {
        if (first.document.step_time_s) {
          this.show(first, took());
          at("state").textContent = "a plan so far, looking for better …";
        }
        const last = await this.fetchPlan(question, signal);
        if (last) this.show(last, took());
      } else if (first) {
        this.show(first, took());
      }
    } catch (error) {
      if (signal.aborted) return;
      this.refuse([{ path: "server", problem: "does not answer" }]);
    }
    at("answer").setAttribute("aria-busy", "false");
  }

  /** The answer; null where there is none and the reader was told why. */
  async fetchPlan(question, signal) {
    for (;;) {
      const response = await fetch("/api/plans", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(question),
        signal,
      });
      const answer = await response.json();
      if (response.ok) return answer;
      if (response.status !== 429) {
        this.refuse(answer.faults);
        return null;
      }
      await new Promise((done) => setTimeout(done, 4 * WAIT_MS));
    }
  }

  refuse(faults) {
    at("faults").replaceChildren(...faults.map(({ path, problem }) => item(`${path}: ${problem}`)));
    document.querySelector(".figures").replaceChildren();
    at("layout").textContent = at("reason").textContent = "";
    at("state").textContent = "refused";
    this.offer(null);
    document.documentElement.dataset.ready = "yes";
  }

  show({ id, document: plan, command }, tookMs) {
    at("faults").replaceChildren(...(plan.warnings ?? []).map(item));
    this.command = command;
    this.showFigures(plan);
    at("layout").textContent = plan.step_time_s ? layoutOf(plan) : `no plan: ${plan.status}`;
    at("reason").textContent = reasonOf(plan);
    at("others").replaceChildren(...(plan.alternatives ?? []).map(rowOf));
    at("state").textContent = `planned in ${(tookMs / 1000).toFixed(1)} s`;
    this.offer(id);
    this.showPage(id);
  }

  showFigures(plan) {
    const now = {
      step: plan.step_time_s, tokens: plan.tokens_per_s, mfu: plan.mfu,
      memory: plan.peak_memory_bytes_per_rank?.length
        ? Math.max(...plan.peak_memory_bytes_per_rank) : undefined,
    };
    const before = this.before ?? {};
    const figures = now.step === undefined ? [] : [
      figure("step", seconds(now.step), change(now.step, before.step, -1)),
      figure("tokens/s", Math.round(now.tokens).toLocaleString("en"), change(now.tokens, before.tokens, 1)),
      figure("MFU", `${(100 * now.mfu).toFixed(1)}%`, change(now.mfu, before.mfu, 1)),
      figure("peak memory", gib(now.memory), change(now.memory, before.memory, 0)),
      figure("gap", plan.lower_bound_s ? gapOf(plan) : "not yet known", ["", ""]),
    ];
    document.querySelector(".figures").replaceChildren(...figures);
    this.last = now.step === undefined ? this.last : now;
  }

  offer(id) {
    at("save-page").hidden = at("save-plan").hidden = at("copy-command").hidden = id === null;
    at("exports").hidden = id === null;
    this.id = id;
    if (id === null) return;
    at("save-page").href = `/pages/${id}`;
    at("save-plan").href = `/api/plans/${id}`;
  }

  /** The new page is loaded behind the old one and takes its place where the reader was. */
  showPage(id) {
    const frames = at("frames"), coming = document.createElement("iframe");
    for (const given_up of frames.querySelectorAll(".coming")) given_up.remove();
    coming.title = "The page of the plan";
    coming.className = "coming";
    coming.addEventListener("load", () => {
      if (!coming.isConnected) return;
      const old = frames.querySelector("iframe:not(.coming)");
      this.applyTheme(coming);
      const top = old?.contentWindow.scrollY ?? 0;
      coming.contentWindow.scrollTo({ top, behavior: "instant" });
      coming.classList.remove("coming");
      old?.remove();
      document.documentElement.dataset.ready = "yes";
    });
    coming.src = `/pages/${id}`;
    frames.append(coming);
  }

  applyTheme(frame = document.querySelector("iframe")) {
    const theme = at("theme").value;
    document.documentElement.dataset.theme = theme;
    const inside = frame?.contentDocument?.getElementById("theme");
    if (!inside || inside.value === theme) return;
    inside.value = theme;
    inside.dispatchEvent(new Event("change"));
  }

  async readConfig() {
    const [file] = at("config").files;
    if (!file) return;
    try {
      this.config = JSON.parse(await file.text());
    } catch {
      this.refuse([{ path: file.name, problem: "is not JSON" }]);
      return;
    }
    at("uploaded").hidden = false;
    at("uploaded").querySelector("span").textContent = file.name;
    this.changed();
  }

  forget() {
    this.config = null;
    at("config").value = "";
    at("uploaded").hidden = true;
  }

  /** Files for a framework; what it cannot express is said in place of them. */
  async exportPlan() {
    const target = at("target").value;
    const response = await fetch(`/api/plans/${this.id}/exports/${target}`);
    if (!response.ok) {
      const { faults } = await response.json();
      at("faults").replaceChildren(...faults.map(({ path, problem }) => item(`${path}: ${problem}`)));
      at("state").textContent = `no files for ${target}`;
      return;
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await response.blob());
    link.download = `${target}.zip`;
    link.click();
    URL.revokeObjectURL(link.href);
    at("state").textContent = `saved ${target}.zip`;
  }

  async copyCommand() {
    try {
      await navigator.clipboard.writeText(this.command);
      at("state").textContent = "command copied";
    } catch {
      at("state").textContent = this.command;
    }
  }
}

// -- words -----------------------------------------------------------------------------------------

function fill(select, names, chosen) {
  for (const name of names) select.append(new Option(name, name, name === chosen, name === chosen));
}

function item(words) {
  const made = document.createElement("li");
  made.textContent = words;
  return made;
}

function figure(label, value, [words, tone]) {
  const made = document.createElement("div");
  made.className = "figure";
  for (const [tag, text] of [["span", label], ["strong", value], ["em", words]]) {
    const part = document.createElement(tag);
    part.textContent = text;
    made.append(part);
  }
  if (tone) made.lastChild.className = tone;
  return made;
}

/** By how much a figure changed; `good` is the sign of a change for the better, 0 for neither. */
function change(now, before, good) {
  if (!before || !now || Math.abs(now / before - 1) < 5e-4) return ["", ""];
  const share = now / before - 1;
  const tone = good === 0 ? "" : share * good > 0 ? "better" : "worse";
  return [`${share > 0 ? "+" : "−"}${(100 * Math.abs(share)).toFixed(1)}%`, tone];
}

function seconds(value) {
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (value >= size) return `${Number((value / size).toPrecision(4))} ${unit}`;
  }
  return `${value} s`;
}

/** Rounded up, so that it stays true. */
function gapOf({ status, gap = 0 }) {
  const most = Math.max(gap, 0);
  return status === "optimal" ? "0, proved" : `≤ ${(Math.ceil(1e4 * most) / 100).toFixed(2)}%`;
}

function gib(bytes) { return `${(bytes / 2 ** 30).toFixed(2)} GiB`; }

function degrees(p) {
  const words = [`tensor ${p.tensor}`, `pipeline ${p.pipeline}`, `data ${p.data}`];
  if (p.context > 1) words.push(`context ${p.context}`);
  if (p.expert > 1) words.push(`expert ${p.expert}`);
  if (p.virtual_stages > 1) words.push(`virtual ${p.virtual_stages}`);
  return `${words.join(" × ")}, ZeRO-${p.zero_stage}`;
}

function layoutOf(plan) {
  const layout = plan.parallelism ? degrees(plan.parallelism) : "degrees per stage";
  return `${layout} · microbatch ${plan.micro_batch} · ${plan.schedule} · ${plan.devices_used} devices used`;
}

function reasonOf(plan) {
  if (!plan.step_time_s) {
    const fixes = (plan.relaxations ?? []).map(({ change, description }) => `${change}: ${description}`);
    const known = [plan.binding?.description, ...fixes].filter(Boolean);
    if (plan.status === "infeasible" && !fixes.length) known.push("no single change is enough");
    return known.join(" · ");
  }
  const parts = Object.entries(plan.time_by_part_s ?? {}).sort(([, a], [, b]) => b - a).slice(0, 4);
  const spent = parts.filter(([, s]) => s / plan.step_time_s >= 1e-3).map(([name, s]) => (
    `${TIME_PARTS[name] ?? name} ${(100 * s / plan.step_time_s).toFixed(1)}%`));
  return `where the step goes: ${spent.join(", ")}`;
}

function rowOf(other) {
  const row = document.createElement("tr");
  const cells = [`${degrees(other.parallelism)}, microbatch ${other.micro_batch}`,
    seconds(other.step_time_s), `+${(100 * (other.slowdown - 1)).toFixed(1)}%`,
    gib(other.peak_memory_bytes)];
  for (const words of cells) row.insertCell().textContent = words;
  return row;
}

async function start() {
  const response = await fetch("/api/choices");
  window.explorer = new Explorer(await response.json());
}

start();
