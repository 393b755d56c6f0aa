// The `openai` package. Writes what it got as one JSON object.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const { ADDRESS, KEY } = process.env;
const client = new OpenAI({ baseURL: `${ADDRESS}/v1`, apiKey: KEY, maxRetries: 0 });
const greedy = { model: "default", temperature: 0, max_tokens: 24 };
const said = (content) => [{ role: "user", content }];
const france = said("What is the capital of France?");
const found = {};

found.whole = await client.chat.completions.create({ messages: france, ...greedy });
found.streamed = "";
for await (const chunk of await client.chat.completions.create({
  messages: france, stream: true, ...greedy,
})) found.streamed += chunk.choices[0]?.delta.content ?? "";

const stream = client.chat.completions.stream({
  messages: france, stream_options: { include_usage: true }, ...greedy,
});
found.assembled = await stream.finalChatCompletion();

const responses = { model: "default", temperature: 0, max_output_tokens: 24 };
const input = france[0].content;
found.response = (await client.responses.create({ input, ...responses })).output_text;
found.responseStreamed =
  (await client.responses.stream({ input, ...responses }).finalResponse()).output_text;

const city = z.object({ name: z.string(), country: z.string() });
const parsed = await client.chat.completions.parse({
  messages: said("Paris is in France. Give the name and the country."),
  response_format: zodResponseFormat(city, "city"), ...greedy, max_tokens: 80,
});
found.parsed = parsed.choices[0].message.parsed;

const parameters = {
  type: "object",
  properties: { city: { type: "string", maxLength: 20 } },
  required: ["city"],
  additionalProperties: false,
};
const weather = { name: "get_weather", description: "The weather in a city.", parameters };
const forced = {
  messages: said("What is the weather in Paris?"),
  tool_choice: { type: "function", function: { name: "get_weather" } },
  ...greedy, max_tokens: 80,
};
const called = await client.chat.completions.parse({
  ...forced, tools: [{ type: "function", function: { ...weather, strict: true } }],
});
found.calls = called.choices[0].message.tool_calls;

const cities = [];
const runner = client.chat.completions.runTools({
  ...forced, stream: true,
  tools: [{
    type: "function",
    function: {
      ...weather, parse: JSON.parse,
      function: ({ city }) => { cities.push(city); return "Sunny."; },
    },
  }],
}, { maxChatCompletions: 2 });
await runner.done().catch(() => null);
found.ran = { cities, roles: runner.messages.slice(1).map((one) => one.role) };

const embed = async (more) =>
  (await client.embeddings.create({ model: "default", input: "A cat.", ...more })).data[0].embedding;
found.embeddings = [await embed({}), await embed({ encoding_format: "float" })];

const failure = async (promise) => {
  const error = await promise.then(() => null, (reason) => reason);
  return [error?.constructor.name, error?.status, error?.code];
};
const other = new OpenAI({ baseURL: `${ADDRESS}/v1`, apiKey: "wrong", maxRetries: 0 });
found.errors = {
  missing: await failure(client.chat.completions.create({ ...greedy, messages: france, model: "gpt" })),
  locked: await failure(other.chat.completions.create({ ...greedy, messages: france })),
};
const story = client.chat.completions.stream({ messages: said("Tell a story."), model: "default" });
story.on("content", () => story.abort());
found.errors.aborted = await story.done().catch((error) => error.constructor.name);
found.afterwards = (await client.chat.completions.create({ messages: france, ...greedy })).id;

console.log(JSON.stringify(found));
