// The `ai` package with three of its providers. Writes what it got as one JSON object.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, jsonSchema, streamText, tool } from "ai";

const { ADDRESS, KEY } = process.env;
const options = { baseURL: `${ADDRESS}/v1`, apiKey: KEY };
const compatible = createOpenAICompatible({
  name: "own", includeUsage: true, supportsStructuredOutputs: true, ...options,
});
const openai = createOpenAI(options);
const providers = { compatible, chat: openai.chat, responses: openai.responses };

const object = (properties) => jsonSchema({
  type: "object", properties, required: Object.keys(properties), additionalProperties: false,
});
const text = { type: "string", maxLength: 20 };
const city = object({ name: text, country: text });
const tools = {
  get_weather: tool({ description: "The weather in a city.", inputSchema: object({ city: text }) }),
};

async function ask(provider) {
  const short = { model: provider("default"), temperature: 0, maxOutputTokens: 24, maxRetries: 0 };
  const long = { ...short, maxOutputTokens: 80 };
  const prompt = "What is the capital of France?";
  const whole = await generateText({ ...short, prompt });
  const stream = streamText({ ...short, prompt });
  let streamed = "";
  for await (const piece of stream.textStream) streamed += piece;
  const counts = ({ inputTokens, outputTokens }) => ({ inputTokens, outputTokens });
  const question = "Paris is in France. Give the name and the country.";
  const forced = {
    ...long, tools, toolChoice: "required", prompt: "What is the weather in Paris?",
    providerOptions: { openai: { parallelToolCalls: false }, own: { parallel_tool_calls: false } },
  };
  const called = await generateText(forced);
  const calledStream = streamText(forced);
  await calledStream.consumeStream();
  const error = await generateText({ ...short, model: provider("gpt"), prompt })
    .then(() => null, (reason) => reason);
  return {
    text: whole.text,
    finish: whole.finishReason,
    usage: counts(whole.usage),
    streamed,
    streamedUsage: counts(await stream.usage),
    object: (await generateObject({ ...long, schema: city, prompt: question })).object,
    calls: called.toolCalls,
    streamedCalls: (await calledStream.toolCalls).map((one) => [one.toolName, one.input]),
    error: error?.statusCode,
  };
}

const found = {};
for (const [name, provider] of Object.entries(providers)) found[name] = await ask(provider);
const model = compatible.embeddingModel("default");
found.embeddings = (await embedMany({ model, values: ["A cat.", "A dog."], maxRetries: 0 })).embeddings;
console.log(JSON.stringify(found));
