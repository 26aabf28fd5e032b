// Colours, units and the formatting of numbers.

// The palette of Okabe and Ito, which colour-blind readers can distinguish. The baseline is grey.
const HUES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const HUES_ON_DARK = ["#56b4e9", "#f08a3c", "#1fbf92", "#dd9bc0", "#e6b030", "#4a9fe0"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
// The indices of the tail percentile and of the objective among the statistics of a measure.
const TAIL = 5;
const OBJECTIVE = 7;
// The names of the statistics of a measure. The loss of train devices also has the objective.
const ordinals = (measure) => (measure.objective ? [...measure.columns, "F_θ"] : measure.columns);

const isDark = () => document.documentElement.dataset.theme === "dark";

// The colours of the style sheet, cached until the theme changes. Reading one recomputes the styles
// of the whole page.
const known = new Map();
function cssColour(name) {
  if (!known.has(name)) known.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return known.get(name);
}

// Returns the colour and the dash of a track, the same in all charts.
function lookOf(run, track) {
  if (track === run.baseline) return { colour: isDark() ? "#b8b4ad" : "#6b6f73", dash: "solid" };
  const place = run.levels.indexOf(track) - 1;
  const hues = isDark() ? HUES_ON_DARK : HUES;
  // Each repetition of the colours has other dashes.
  const repetition = Math.floor(place / hues.length);
  return { colour: hues[place % hues.length], dash: DASHES[(place + repetition) % DASHES.length] };
}

function faded(colour, opacity) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
}

// Returns a value in the unit of the charts. Shares are in per cent.
const drawn = (measure, value) => (measure.percent ? 100 * value : value);
// Formats a value. Numbers of eight and more digits use scientific notation.
const number = (measure, value) => written(drawn(measure, value), measure.decimals);
const written = (value, decimals) => (Math.abs(value) >= 1e7 ? value.toExponential(3).replace("+", "") : value.toFixed(decimals));
// Returns a change as a cost. Negative values are improvements for all measures.
const cost = (measure, value) => (measure.lower_is_better ? value : -value);
// Formats a range. A bound that is not finite is unknown.
function range({ lower, upper }, text) {
  if (!Number.isFinite(upper)) return Number.isFinite(lower) ? `≥ ${text(lower)}` : "?";
  if (!Number.isFinite(lower)) return `≤ ${text(upper)}`;
  return text(lower) === text(upper) ? text(lower) : `${text(lower)}–${text(upper)}`;
}
const withUnit = (measure, value) => number(measure, value) + (measure.percent ? " %" : "");

// Formats a change with its sign. The minus sign is U+2212, which is as wide as the plus sign.
function change(measure, value) {
  const text = number(measure, Math.abs(value));
  if (Number(text) === 0) return "±" + text;
  return (value < 0 ? "−" : "+") + text;
}
const changeUnit = (measure) => (measure.percent ? " points" : "");
const changeClass = (measure, value) => (cost(measure, value) < 0 ? "gain" : cost(measure, value) > 0 ? "loss" : "");
const rounds = (n) => `${n.toLocaleString("en-GB")} ${n === 1 ? "round" : "rounds"}`;

// Creates an element. Text is never parsed as markup, because device names may contain any
// characters.
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const MARKUP = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
const asMarkup = (text) => text.replace(/[&<>]/g, (c) => MARKUP[c]);
