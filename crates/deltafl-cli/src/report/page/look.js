// Colours, units and words.

// Okabe and Ito's palette, told apart by the colour-blind; the baseline is grey.
const HUES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const HUES_ON_DARK = ["#56b4e9", "#f08a3c", "#1fbf92", "#dd9bc0", "#e6b030", "#4a9fe0"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const ORDINALS = ["Mean", "20th", "Median", "60th", "80th", "90th", "95th"];
const FIGURE_NAMES = ["mean", "20th percentile", "median", "60th percentile", "80th percentile", "90th percentile", "95th percentile"];
const P90 = 5;
const OBJECTIVE = 7;
// The figures that a split has: train devices have the objective too.
const ordinals = (split) => (split.objective ? [...ORDINALS, "F_θ"] : ORDINALS);

const isDark = () => document.documentElement.dataset.theme === "dark";

// The colours of the style sheet, remembered until the theme changes: to ask for one settles the whole page's style.
const known = new Map();
function cssColour(name) {
  if (!known.has(name)) known.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return known.get(name);
}

// Colour and dash of a track: the same in every chart.
function lookOf(run, track) {
  if (track === run.baseline) return { colour: isDark() ? "#b8b4ad" : "#6b6f73", dash: "solid" };
  const place = run.knob.indexOf(track) - 1;
  const hues = isDark() ? HUES_ON_DARK : HUES;
  return { colour: hues[place % hues.length], dash: DASHES[place % DASHES.length] };
}

function faded(colour, opacity) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
}

// A value as it is drawn: errors in per cent.
const drawn = (split, value) => (split.percent ? 100 * value : value);
const decimals = (split) => (split.percent ? 2 : 3);
const number = (split, value) => drawn(split, value).toFixed(decimals(split));
const withUnit = (split, value) => number(split, value) + (split.percent ? " %" : "");

// A change with its sign; a true minus, as long as the plus.
function change(split, value) {
  const text = number(split, Math.abs(value));
  if (Number(text) === 0) return "±" + text;
  return (value < 0 ? "−" : "+") + text;
}
const changeUnit = (split) => (split.percent ? " points" : "");
const changeClass = (value) => (value < 0 ? "gain" : value > 0 ? "loss" : "");
const rounds = (n) => `${n.toLocaleString("en-GB")} ${n === 1 ? "round" : "rounds"}`;

// An element; text is text, never markup: a device may be called anything.
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const MARKUP = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
const asMarkup = (text) => text.replace(/[&<>]/g, (c) => MARKUP[c]);
