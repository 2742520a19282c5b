// The page is complete without this program. It adds a cursor to the timeline that describes a moment as text, and
// reads the page again while `raydebug report --follow` writes it.
"use strict";
(() => {
  const source = document.getElementById("data");
  const every = source && JSON.parse(source.textContent).reload_s;
  if (every) {
    const box = document.createElement("input"), label = document.createElement("label");
    box.type = "checkbox";
    box.checked = true; // who reads can stop it: WCAG 2.2.2
    label.className = "reloads";
    label.append(box, " read again every " + every + " s, until the run ends");
    document.querySelector("header").append(label);
    setInterval(() => { if (box.checked && !document.hidden) location.reload(); }, 1000 * every);
  }
  const timeline = document.querySelector(".timeline");
  const ruler = document.querySelector(".ruler");
  if (!source || !timeline || !ruler) return;
  const data = JSON.parse(source.textContent);
  const STOPS = 1000;

  const slider = document.createElement("input");
  slider.type = "range";
  slider.min = "0";
  slider.max = String(STOPS);
  slider.value = "0";
  slider.setAttribute("aria-label", "moment of the run");
  const words = document.createElement("output");
  const moment = document.createElement("p");
  moment.className = "moment";
  moment.append(slider, words);
  ruler.parentElement.append(moment);
  const cursor = document.createElement("div");
  cursor.className = "cursor";
  cursor.hidden = true;
  timeline.append(cursor);
  words.textContent = "Move the pointer over the timeline, or this slider, to see a moment.";

  const seconds = (s) => {
    if (s < 9.995) return s.toFixed(2) + " s";
    if (s < 59.95) return s.toFixed(1) + " s";
    const whole = Math.round(s), two = (n) => String(n).padStart(2, "0");
    if (whole < 3600) return Math.floor(whole / 60) + "m" + two(whole % 60) + "s";
    return Math.floor(whole / 3600) + "h" + two(Math.floor((whole % 3600) / 60)) + "m" + two(whole % 60) + "s";
  };
  const size = (mib) => (mib < 1024 ? mib + " MiB" : (mib / 1024).toFixed(1) + " GiB");
  // The number of rows before t; rows are ordered by their first column, a moment.
  const before = (rows, t) => {
    let low = 0, high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rows[middle][0] < t) low = middle + 1; else high = middle;
    }
    return low;
  };

  const describe = (t) => {
    const parts = [seconds(t)];
    const phases = data.phases.filter((p) => p[1] <= t && t <= p[2]).map((p) => p[0]);
    if (phases.length) parts.push(phases.slice(0, 3).join(", "));
    // Pauses are merged, so only the last one that began before t can contain it.
    const begun = data.pauses[before(data.pauses, t) - 1];
    if (begun && t <= begun[1]) parts.push("paused");
    const step = data.steps[before(data.steps, t)];
    if (step && step[0] - step[2] <= t) parts.push("step " + step[1] + " (" + seconds(step[2]) + ")");
    const memory = data.memory[before(data.memory, t)];
    if (memory) parts.push("memory " + size(memory[1]));
    return parts.join("  \u00b7  ");
  };

  let waiting = false;
  const show = () => {
    waiting = false;
    const t = (data.length * slider.value) / STOPS;
    const box = ruler.getBoundingClientRect(), frame = timeline.getBoundingClientRect();
    cursor.style.left = box.left - frame.left + (box.width * slider.value) / STOPS + "px";
    cursor.hidden = false;
    words.textContent = describe(t);
    slider.setAttribute("aria-valuetext", words.textContent);
  };
  const soon = () => {
    if (!waiting) requestAnimationFrame(show);
    waiting = true;
  };
  slider.addEventListener("input", soon);
  timeline.addEventListener("pointermove", (event) => {
    if (event.target === slider) return;
    const box = ruler.getBoundingClientRect();
    if (event.clientX < box.left || event.clientX > box.right) return;
    slider.value = String(Math.round((STOPS * (event.clientX - box.left)) / box.width));
    soon();
  });
})();
