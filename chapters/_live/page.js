/* Shared by the interactive parts of a page: elements, text for screen readers, and waiting until a part is in view. */
"use strict";
globalThis.livePage = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const make = (parent, name, attributes = {}, text) => {
    const drawn = name === "svg" || parent instanceof SVGElement;
    const element = drawn ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return parent.appendChild(element);
  };

  // Text for screen readers, announced once the reader pauses.
  const REST = 500; // milliseconds
  const speaker = (host) => {
    const status = make(host, "p", { class: "live-spoken", role: "status" });
    let waiting;
    return (words) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => (status.textContent = words), REST);
    };
  };

  // Questions, one at a time, next to the picture: each sets up the picture (`start`), asks what will happen, and
  // offers guesses; when the reader has chosen one, the picture shows what happens (`then`), and the answer says why.
  const questions = (parent, list, change) => {
    const asked = make(parent, "p", { class: "live-question" });
    const guesses = make(parent, "div", { class: "live-row live-guesses", role: "group", "aria-label": "Your guess" });
    const answer = make(parent, "p", { role: "status" });
    const next = make(parent, "button", { type: "button" }, "Next question");
    next.hidden = list.length === 1;
    parent.parentElement.addEventListener("input", () => parent.classList.remove("asking"));
    let at = 0;
    const ask = () => {
      parent.classList.add("asking"); // until the reader guesses or uses a control
      asked.textContent = `${list.length > 1 ? `${at + 1} of ${list.length}. ` : ""}${list[at].ask}`;
      answer.textContent = "";
      guesses.replaceChildren();
      for (const words of list[at].guesses) {
        const guess = make(guesses, "button", { type: "button", "aria-pressed": false }, words);
        guess.addEventListener("click", () => {
          for (const one of guesses.children) one.setAttribute("aria-pressed", one === guess);
          parent.classList.remove("asking");
          answer.textContent = list[at].answer;
          change(list[at].then);
        });
      }
      change(list[at].start);
    };
    next.addEventListener("click", () => {
      at = (at + 1) % list.length;
      ask();
    });
    ask();
  };

  // Place the names in a drawing, the most important first: of the places near its point and a little farther away,
  // each name takes the first one where it covers least.
  const SIDES = [[1, -1], [1, 0], [1, 1], [-1, 1], [-1, 0], [-1, -1], [0, -1], [0, 1]];
  const PLACES = [0, 14].flatMap((more) => SIDES.map((side) => [...side, more]));
  const LETTERS = 0.7; // height of letters, as a share of the line height
  const common = (a, b) =>
    Math.max(0, Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x)) *
    Math.max(0, Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y));
  const label = (names, taken, view) => {
    const boxes = names.map(({ name }) => name.getBBox());
    for (const [i, { name, at: [x, y], gap }] of names.entries()) {
      const [width, height] = [boxes[i].width, LETTERS * boxes[i].height];
      const places = PLACES.map(([right, down, more]) => {
        const away = (gap + more) * (right && down ? 0.7 : 1);
        return {
          x: x + right * (away + width / 2) - width / 2,
          y: y + down * (away + height / 2) - height / 2,
          width,
          height,
        };
      });
      const covers = places.map((place) =>
        taken.reduce((sum, box) => sum + common(place, box), 9 * (width * height - common(place, view)))
      );
      const place = places[covers.indexOf(Math.min(...covers))];
      name.setAttribute("x", Number(name.getAttribute("x")) + place.x - boxes[i].x);
      name.setAttribute("y", Number(name.getAttribute("y")) + place.y - boxes[i].y - (boxes[i].height - height) / 2);
      taken.push(place);
    }
  };

  // At most one call per frame, with the latest arguments.
  const onceAFrame = (work) => {
    let asked;
    return (...given) => {
      if (!asked) requestAnimationFrame(() => work(...[asked, asked = undefined][0]));
      asked = given;
    };
  };

  // Set up each part only when it is nearly in view; parts that already are do not wait for a frame.
  const NEARLY = 200; // pixels
  const whenSeen = (selector, setUp) => {
    const seen = new IntersectionObserver(
      (entries) => {
        for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
          seen.unobserve(target);
          setUp(target);
        }
      },
      { rootMargin: `${NEARLY}px` },
    );
    for (const host of document.querySelectorAll(selector)) {
      const { top, bottom } = host.getBoundingClientRect();
      if (top < innerHeight + NEARLY && bottom > -NEARLY) setUp(host);
      else seen.observe(host);
    }
  };

  // Project a point in space to the screen: (1, 1, 1) points up, and the plane of mean 0 is seen from slightly above;
  // `turn` is the angle about (1, 1, 1) in radians, `scale` the number of pixels per unit.
  const [UP, TILT] = [0.95, 0.31];
  const flat = (scale, turn) => ([a, b, c]) => {
    const up = (a + b + c) / Math.sqrt(3);
    const [p, q] = [(a - b) / Math.SQRT2, (a + b - 2 * c) / Math.sqrt(6)];
    const [k, l] = [Math.cos(turn), Math.sin(turn)];
    return [scale * (k * p - l * q), -scale * (UP * up + TILT * (l * p + k * q))];
  };
  // The inverse for a move on the screen: a move in space, neither towards the viewer nor away.
  const lifted = (scale, turn, right, down) => {
    const [p, q, up] = [(Math.cos(turn) * right) / scale, (-Math.sin(turn) * right) / scale, -down / (scale * UP)];
    return ACROSS[0].map((u, i) => p * u + q * ACROSS[1][i] + up / Math.sqrt(3));
  };
  // Two orthogonal unit vectors perpendicular to (1, 1, 1), and circles in the plane of two vectors.
  const ACROSS = [
    [1 / Math.SQRT2, -1 / Math.SQRT2, 0],
    [1 / Math.sqrt(6), 1 / Math.sqrt(6), -2 / Math.sqrt(6)],
  ];
  const around = (centre, radius, [u, v] = ACROSS) =>
    Array.from({ length: 73 }, (_, i) => {
      const [c, s] = [Math.cos((i * Math.PI) / 36), Math.sin((i * Math.PI) / 36)];
      return centre.map((e, j) => e + radius * (c * u[j] + s * v[j]));
    });

  // An angle in radians, converted to whole degrees from −180 to 180.
  const degrees = (angle) => Math.round((Math.atan2(Math.sin(angle), Math.cos(angle)) * 180) / Math.PI);
  const SILENT = { "aria-live": "off" }; // for a slider's value, which the slider itself announces
  const minus = (text) => String(text).replace(/-/g, "−");
  return {
    make,
    speaker,
    questions,
    label,
    onceAFrame,
    whenSeen,
    flat,
    lifted,
    around,
    degrees,
    minus,
    ACROSS,
    SILENT,
  };
})();
