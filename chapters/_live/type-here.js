/* Type here: a small network in the page reads what the reader types, and the page shows what its norms do.

   <div class="network" data-controls="model shift uncentred removed held" data-text="…">a still picture</div>.  norms.js
   does the computation; twins.js contains the weights and is loaded when such an element comes into view. */
"use strict";
{
  const { make, speaker, questions, onceAFrame, whenSeen, minus, SILENT } = livePage;
  const WEIGHTS = document.currentScript.src.replace(/type-here\.js.*$/, "twins.js");
  const MODELS = { layer: "with LayerNorm", rms: "with RMSNorm", converted: "with LayerNorm, converted to RMSNorm" };
  const QUANTITIES = {
    angle: { words: "angle to (1, …, 1) in degrees", say: (v) => v.toFixed(1), unit: "°" },
    occupancy: { words: "occupancy, d·cos²", say: (v) => v.toPrecision(2) },
    length: { words: "length", say: (v) => v.toFixed(1) },
    largest: { words: "entry with the largest absolute value", say: (v) => v.toFixed(1) },
  };
  const LEGEND = {
    before: "● before the norm",
    after: "■ after the norm",
    untouched: "┄ before the norm, in the unchanged network",
  };
  const BEST = 5; // number of predicted bytes shown
  const [TOLD, MARKED] = [12, 40]; // at most this many places: all numbers are read out; marks are large
  const START = {
    text: "",
    model: "layer",
    shift: 0,
    uncentred: "",
    held: false,
    removed: "",
    quantity: "angle",
    site: "",
    at: Infinity,
  };

  // For questions() of page.js; a page asks only those that its controls can answer.
  const QUESTIONS = [
    {
      ask:
        "We added 10 to every entry of the stream, and the angles before the norms fell from about 90° to less than 10°. What will happen to the prediction if we undo this?",
      guesses: ["Nothing", "It changes a little", "It becomes useless"],
      start: { shift: 10 },
      then: { shift: 0 },
      answer: "Nothing, beyond rounding: every LayerNorm subtracts the mean.",
    },
    {
      ask: "This network has RMSNorm. What will happen to its prediction if we add 10 to every entry of the stream?",
      guesses: ["Nothing", "It changes a little", "It becomes useless"],
      start: { model: "rms" },
      then: { model: "rms", shift: 10 },
      answer: "It becomes useless: RMSNorm does not subtract the mean.",
    },
    {
      ask: "How much will the prediction change if no norm subtracts the mean?",
      guesses: ["Not at all", "Little", "Completely"],
      start: {},
      then: { uncentred: "everywhere" },
      answer:
        "Little on average, because the means happen to be small. If you then add a number to the stream, it changes much more.",
    },
    {
      ask: "We remove the mean from the weights and turn all nine norms into RMSNorms. Which predictions will change?",
      guesses: ["None", "Some", "All"],
      start: {},
      then: { model: "converted" },
      answer: "None, beyond rounding. The angle before every norm is now 90°, because the stream now has mean 0.",
    },
    {
      ask:
        "Block 1's attention is removed. If we hold the scales, which of these numbers will agree: its credit, the fall at the final norm, the fall in the whole network?",
      guesses: ["All three", "The first two", "None"],
      start: { removed: "h.0.attn" },
      then: { removed: "h.0.attn", held: true },
      answer:
        "The first two: at the final norm, only the scale made them differ. The third still differs, because later parts read a different stream.",
    },
  ];

  const shown = (byte) => {
    if (byte === 10) return "⏎";
    if (byte === 32) return "␣";
    return byte > 32 && byte < 127 ? String.fromCharCode(byte) : byte.toString(16).toUpperCase().padStart(2, "0");
  };
  const PARTS = { ln_1: "before attention", ln_2: "before the MLP", attn: "attention", mlp: "MLP" };
  const WHOLE = {
    ln_f: "the final norm",
    tokens: "the byte vectors",
    positions: "the position vectors",
  };
  const inWords = (name) => {
    const [, block, part] = name.match(/^h\.(\d+)\.(\w+)$/) ?? [];
    return block ? `block ${Number(block) + 1}, ${PARTS[part]}` : WHOLE[name];
  };
  const number = (v) => {
    const size = Math.abs(v);
    if (v !== 0 && (size < 0.001 || size >= 1e4)) return minus(v.toExponential(0));
    return minus(size >= 99.5 ? v.toFixed(0) : v.toPrecision(2));
  };
  // Numbers that may be added to the stream, closely spaced where the effect changes fastest.
  const SHIFTS = [-20, -10, -5, -2, -1, -0.5, -0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 20];

  // Each network is unpacked when it is first needed.
  const unpacked = (saved) => {
    const made = { layer: normgeom.unpack(saved.layer) };
    return {
      layer: made.layer,
      get rms() {
        return (made.rms ??= normgeom.unpack(saved.rms));
      },
      get converted() {
        return (made.converted ??= normgeom.toRmsNorm(made.layer));
      },
    };
  };
  let loading;
  const load = () => (loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = WEIGHTS;
    script.onload = () => {
      try {
        resolve(unpacked(normgeom.saved));
      } catch (error) {
        reject(error);
      }
    };
    script.onerror = () => reject(new Error("its weights, twins.js, are missing"));
    document.head.append(script);
  }));

  // Run the unchanged network on a text; the reference of a converted network is the network that was converted.
  const untouched = (networks, { text, model }) => {
    const own = networks[model];
    const bytes = [...new TextEncoder().encode(text)];
    const ids = bytes.slice(-own.length);
    if (!ids.length) return { ids };
    const source = model === "converted" ? networks.layer : own;
    const reference = normgeom.forward(source, ids);
    return { ids, all: bytes.length, reference, own: source === own ? reference : normgeom.forward(own, ids) };
  };
  // Run the network on the same text with the reader's changes.
  const changed = (networks, { ids, reference, own }, { model, shift, uncentred, held, removed }) => {
    const network = networks[model];
    const names = normgeom.sites(network);
    const changes = {
      shift,
      uncentred: uncentred === "everywhere" ? names : [uncentred],
      held: held ? Object.fromEntries(names.map((name) => [name, own.sites[name].scales])) : {},
    };
    const whole = normgeom.forward(network, ids, changes); // with no part removed
    const run = removed ? normgeom.forward(network, ids, { ...changes, removed }) : whole;
    return { network, changes, whole, run, ...normgeom.apart(reference.logits, run.logits, network.vocabulary) };
  };
  const setUp = async (host) => {
    let networks;
    try {
      networks = await load();
    } catch (error) {
      loading = undefined;
      const words = `The network cannot run: ${error.message}. Run “make book” to write its weights again.`;
      make(host, "p", { class: "live-warning", role: "alert" }, words);
      return;
    }
    const wanted = host.dataset.controls.split(" ");
    const state = { ...START, text: host.dataset.text ?? "" };
    host.replaceChildren();
    const labelled = (parent, words) => make(parent, "label", {}, `${words} `);
    const area = make(labelled(host, "Your text"), "textarea", { rows: 2, spellcheck: "false", autocapitalize: "off" });
    area.value = state.text;
    const said = make(host, "p", { class: "live-said", role: "status" });
    const strip = make(host, "div", {
      class: "network-strip",
      role: "listbox",
      "aria-label": "What the network reads; choose a position",
    });
    const [seen, set] = ["seen", "set"].map((name) => make(host, "div", { class: `live-${name}` }));
    const heading = make(seen, "p", { class: "network-heading" });
    const next = make(seen, "ol", { class: "network-next", "aria-label": "Most probable next bytes" });
    const asking = make(set, "div");
    const effect = make(set, "p", { class: "network-effect" });
    const controls = make(set, "div", { class: "live-row" });
    const looking = make(set, "div", { class: "live-row" });
    const svg = make(seen, "svg", { viewBox: "0 0 640 290", role: "img", class: "network-chart" });
    const legend = make(seen, "p", { class: "network-legend" });
    for (const [name, words] of Object.entries(LEGEND)) make(legend, "span", { class: name }, words);
    const speak = speaker(host);

    const choose = (parent, name, words, options) => {
      const select = make(labelled(parent, words), "select");
      for (const [value, text] of Object.entries(options)) make(select, "option", { value }, text);
      select.addEventListener("input", () => change({ [name]: select.value }));
      return select;
    };
    const named = (names) => Object.fromEntries(names.map((name) => [name, inWords(name)]));
    const sites = normgeom.sites(networks.layer);
    const CONTROLS = {
      model: () => choose(controls, "model", "The network", MODELS),
      shift: () => {
        const words = "Add to every entry of the stream";
        const wrap = labelled(controls, words);
        const input = make(wrap, "input", {
          type: "range",
          min: 0,
          max: SHIFTS.length - 1,
          step: 1,
          "aria-label": words,
        });
        make(wrap, "output", SILENT);
        input.addEventListener("input", () => change({ shift: SHIFTS[input.value] }));
        return input;
      },
      uncentred: () =>
        choose(controls, "uncentred", "Leave the subtraction out", {
          "": "nowhere",
          everywhere: "at every norm",
          ...named(sites),
        }),
      removed: () =>
        choose(controls, "removed", "Remove a part", { "": "none", ...named(normgeom.parts(networks.layer)) }),
      held: () => {
        const input = make(labelled(controls, "Hold the scales of the unchanged network"), "input", {
          type: "checkbox",
        });
        input.addEventListener("input", () => change({ held: input.checked }));
        return input;
      },
    };
    const inputs = Object.fromEntries(wanted.map((name) => [name, CONTROLS[name]()]));
    const changeOnly = (changes) => {
      const { text, quantity, site, at } = state;
      change({ ...START, text, quantity, site, at, ...changes });
    };
    make(controls, "button", { type: "button" }, "Undo all changes").addEventListener("click", () => changeOnly({}));
    inputs.quantity = choose(
      looking,
      "quantity",
      "Show",
      Object.fromEntries(Object.entries(QUANTITIES).map(([key, { words }]) => [key, words])),
    );
    const everywhere = Object.fromEntries(sites.map((name) => [name, `${inWords(name)}, every position`]));
    inputs.site = choose(looking, "site", "at", { "": "every norm, the chosen position", ...everywhere });
    area.addEventListener("input", () => change({ text: area.value, at: Infinity }));

    let before; // results of untouched() for the current text and network
    const change = (changes) => {
      if ("text" in changes || "model" in changes) before = undefined;
      Object.assign(state, changes);
      draw();
    };
    const paint = () => {
      before ??= untouched(networks, state);
      const found = before.reference ? { ...before, ...changed(networks, before, state) } : before;
      host.live = { state, change, found };
      const failed = found.run && !found.run.logits.every(Number.isFinite);
      const empty = !found.run || failed;
      if (area.value !== state.text) area.value = state.text;
      const cut = found.all > found.ids.length ? `It reads the last ${found.ids.length} bytes of ${found.all}.` : "";
      const asked = "Type something: the network predicts each byte from the bytes before it.";
      const broken = "The network computed a value that is not a finite number. Undo the last change.";
      said.textContent = failed ? broken : empty ? asked : cut;
      for (const part of [strip, heading, next, effect, looking, legend]) part.hidden = empty;
      svg.style.display = empty ? "none" : "";
      for (const [name, input] of Object.entries(inputs)) {
        if (input.type === "checkbox") input.checked = state[name];
        else input.value = name === "shift" ? SHIFTS.indexOf(state.shift) : state[name];
      }
      if (inputs.shift) {
        inputs.shift.setAttribute("aria-valuetext", minus(state.shift));
        inputs.shift.nextElementSibling.textContent = minus(state.shift);
      }
      if (inputs.uncentred) {
        inputs.uncentred.disabled = state.model !== "layer";
        inputs.uncentred.options[0].textContent = state.model === "layer" ? "nowhere" : "RMSNorm subtracts nothing";
        if (state.model !== "layer") inputs.uncentred.value = "";
      }
      if (empty) return speak(failed ? broken : "No text has been typed.");
      const at = Math.min(state.at, found.ids.length - 1);
      list(found, at);
      const guess = bars(found, at);
      const words = tell(found, at);
      chart(state.site ? byPosition(found) : byNorm(found, at));
      speak(`${words} Most probable next byte: ${guess}.`);
    };
    const draw = onceAFrame(paint);

    const list = ({ ids }, at) => {
      while (strip.children.length > ids.length) strip.lastChild.remove();
      ids.forEach((byte, t) => {
        const cell = strip.children[t] ?? make(strip, "button", { type: "button", role: "option" });
        cell.textContent = shown(byte);
        cell.tabIndex = t === at ? 0 : -1;
        cell.setAttribute("aria-selected", t === at);
        cell.setAttribute("aria-label", `position ${t + 1}, ${shown(byte)}`);
      });
      strip.scrollLeft = strip.children[at].offsetLeft - strip.offsetLeft - strip.clientWidth / 2;
    };
    strip.addEventListener("click", (event) => {
      const t = [...strip.children].indexOf(event.target);
      if (t >= 0) change({ at: t });
    });
    strip.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (!step) return;
      event.preventDefault();
      const last = strip.children.length - 1;
      state.at = Math.min(last, Math.max(0, Math.min(state.at, last) + step));
      strip.children[state.at].focus();
      draw();
    });

    const rowOf = (logits, network, at) => logits.subarray(at * network.vocabulary, (at + 1) * network.vocabulary);
    const bars = ({ run, reference, network, ids }, at) => {
      const read = ids.slice(Math.max(0, at - 9), at + 1).map((
        byte,
      ) => (shown(byte).length > 1 ? `\\x${shown(byte)}` : shown(byte)));
      heading.textContent = `After ${read.join("")}, the next byte:`;
      const [p, was] = [run, reference].map(({ logits }) => normgeom.softmax(rowOf(logits, network, at)));
      const best = [...p.keys()].sort((a, b) => p[b] - p[a]).slice(0, BEST);
      next.replaceChildren();
      for (const byte of best) {
        const item = make(next, "li");
        make(item, "code", {}, shown(byte));
        make(make(item, "span"), "i", { style: `width: ${(100 * p[byte]).toFixed(1)}%` });
        const [now, then] = [p, was].map((of) => `${(100 * of[byte]).toFixed(1)} %`);
        make(item, "span", {}, now === then ? now : `${now}, unchanged ${then}`);
      }
      return `${shown(best[0])}, ${(100 * p[best[0]]).toFixed(0)} percent`;
    };

    const tell = (found, at) => {
      const { network, changes, whole, run } = found;
      const words = [];
      const uncentred = state.model === "layer" && state.uncentred;
      const touched = state.shift || uncentred || state.held || state.removed || state.model === "converted";
      if (touched) {
        const other = state.model === "converted" ? "the network that was converted" : "the unchanged network";
        words.push(
          `The prediction differs from that of ${other} by ${number(found.divergences[at])} nats at this position`,
          `and by ${
            number(found.divergence)
          } on average over all positions (KL). The largest change in any logit at any position is ${
            number(found.change)
          }.`,
        );
      } else words.push("The network is unchanged.");
      if (state.removed) {
        const row = rowOf(whole.logits, network, at);
        const token = row.indexOf(Math.max(...row));
        const mean = (of) => of.reduce((a, b) => a + b, 0) / of.length;
        const above = (logits) => rowOf(logits, network, at)[token] - mean(rowOf(logits, network, at));
        const { frozen, direct } = normgeom.effects(network, whole, state.removed, at, token, changes);
        words.push(
          `With the part, the logit of ${shown(token)} is ${number(above(whole.logits))} above the mean logit.`,
          `With the final scale held, the part is credited with ${number(frozen)} of this. The logit falls by ${
            number(direct)
          }`,
          `if the part is removed just before the final norm, and by ${
            number(above(whole.logits) - above(run.logits))
          } if it is removed from the whole network.`,
        );
      }
      return (effect.textContent = words.join(" "));
    };

    // The data of a chart: its places, their short and long names, and series of measured quantities.
    const looks = (from, name, side, t, d) => normgeom.look(from.sites[name][side].subarray(t * d, (t + 1) * d));
    const SERIES = [["before", "run", "in"], ["after", "run", "out"], ["untouched", "own", "in"]];
    const series = (found, places) =>
      Object.fromEntries(
        SERIES.map(([key, from, side]) => [
          key,
          places.map(([name, t]) => looks(found[from], name, side, t, found.network.width)),
        ]),
      );
    const byNorm = (found, at) => ({
      where: `At position ${at + 1}`,
      short: sites.map((name) => (name === "ln_f" ? "final" : name.endsWith("1") ? "attn" : "MLP")),
      groups: Array.from({ length: networks.layer.layers }, (_, block) => [2 * block + 0.5, `block ${block + 1}`]),
      long: sites.map(inWords),
      series: series(found, sites.map((name) => [name, at])),
    });
    const byPosition = (found) => ({
      where: `At one norm (${inWords(state.site)})`,
      short: found.ids.map((byte, t) => (found.ids.length <= MARKED || t % 8 === 0 ? shown(byte) : "")),
      long: found.ids.map((byte, t) => `position ${t + 1}, ${shown(byte)}`),
      series: series(found, found.ids.map((_, t) => [state.site, t])),
    });

    const chart = ({ where, short, groups = [], long, series }) => {
      const { words, say, unit = "" } = QUANTITIES[state.quantity];
      const values = Object.fromEntries(
        Object.entries(series).map(([name, of]) => [name, of.map((v) => v[state.quantity])]),
      );
      const every = Object.values(values).flat().filter(Number.isFinite);
      const angles = state.quantity === "angle";
      const least = state.quantity === "occupancy" ? 0.01 : 0; // so that rounding errors do not fill the chart
      const [low, high] = angles ? [0, 180] : [Math.min(0, ...every), Math.max(least, ...every) || 1];
      const left = (i) => 70 + (i * 530) / Math.max(1, short.length - 1);
      const top = (v) => 222 - (175 * (v - low)) / (high - low);
      svg.replaceChildren();
      const apart = (v) => Math.abs(top(v) - top(0)) > 16; // otherwise their labels overlap
      for (const v of angles ? [0, 90, 180] : [0, ...[low, high].filter(apart)]) {
        make(svg, "line", { x1: 56, x2: 620, y1: top(v), y2: top(v), class: "grid" });
        make(svg, "text", { x: 50, y: top(v) + 5, "text-anchor": "end" }, minus(say(v).replace(/\.0$/, "")) + unit);
      }
      make(svg, "text", { x: 0, y: 22 }, words);
      const under = (y) => ([i, name]) => make(svg, "text", { x: left(i), y, "text-anchor": "middle" }, name);
      Object.entries(short).forEach(under(252));
      groups.forEach(under(280));
      for (const [name, of] of Object.entries(values)) {
        const points = of.flatMap((v, i) => (Number.isFinite(v) ? [[left(i), top(v), `${long[i]}: ${say(v)}`]] : []));
        make(svg, "polyline", { class: name, points: points.map(([x, y]) => `${x},${y}`).join(" ") });
        if (name === "untouched") continue;
        const size = short.length <= MARKED ? 9 : 4;
        for (const [x, y, words] of points) {
          const box = { x: x - size / 2, y: y - size / 2, width: size, height: size };
          const mark = make(svg, "rect", { class: name, ...box, rx: name === "before" ? size / 2 : 0 });
          make(mark, "title", {}, words); // shown under the pointer
        }
      }
      const each = () =>
        long.map((name, i) => `${name}: ${say(values.before[i])} and ${say(values.after[i])}`).join("; ");
      const range = (side) => `${say(Math.min(...values[side]))} to ${say(Math.max(...values[side]))} ${side}`;
      const told = short.length <= TOLD ? each() : `${range("before")}, ${range("after")}`;
      svg.setAttribute("aria-label", `${where}, ${words}, before and after: ${told}.`);
    };
    const able = QUESTIONS.filter(({ start, then }) =>
      Object.keys({ ...start, ...then }).every((key) => key in inputs)
    );
    questions(asking, able, changeOnly);
    paint();
  };

  whenSeen(".network", setUp);
}
