// The numbers of the settings, which go with a request.

export const NUMBERS = [
  { name: "temperature", label: "Temperature", least: 0, hint: "0: always the likeliest token" },
  { name: "top_p", label: "Top P", least: 0, most: 1 },
  { name: "top_k", label: "Top K", least: 0, whole: true },
  { name: "min_p", label: "Min P", least: 0, most: 1 },
  { name: "repetition_penalty", label: "Repetition penalty", least: 0 },
  { name: "frequency_penalty", label: "Frequency penalty", least: -2, most: 2 },
  { name: "presence_penalty", label: "Presence penalty", least: -2, most: 2 },
  { name: "max_tokens", label: "Longest answer (tokens)", least: 1, whole: true },
  { name: "seed", label: "Seed", whole: true, open: "drawn at random" },
];

/** Those of some numbers that the settings would take. Another name would be one more field of a
 * request, and the server refuses a number that is out of range. */
export function known(numbers) {
  const found = NUMBERS.map((one) => [one, (numbers || {})[one.name]]).filter(([one, number]) => fits(one, number));
  return Object.fromEntries(found.map(([{ name }, number]) => [name, number]));
}

function fits({ least = -Infinity, most = Infinity, whole }, number) {
  return Number.isFinite(number) && number >= least && number <= most && (!whole || Number.isInteger(number));
}

/** What is sent where neither the user nor the model's files say it. At temperature 1, small models
 * talk nonsense, and some never stop by themselves. */
const FALLBACK = { temperature: 0.2, top_p: 0.9, max_tokens: 4096 };

/** The numbers to send with a request. entry: of /v1/models. */
export function numbersToSend(numbers, entry) {
  return { ...fallbacks(entry), ...numbers };
}

export function fallbacks(entry) {
  const own = entry && entry.default_parameters;
  if (!own) return {}; // a model that is not open yet: the server decides
  return Object.fromEntries(Object.entries(FALLBACK).filter(([name]) => own[name] == null));
}
