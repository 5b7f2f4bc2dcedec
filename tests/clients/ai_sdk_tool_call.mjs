// The Vercel AI SDK with its openai-compatible provider: stream a call, run the tool, stream the answer.
// node ai_sdk_tool_call.mjs BASE_URL MODEL; prints one line of JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, model] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "local", baseURL, apiKey: "x", includeUsage: true });
const result = streamText({
  model: provider(model),
  prompt: "Weather in Zürich?",
  stopWhen: stepCountIs(3),
  tools: {
    get_weather: tool({
      description: "Weather of a city",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => `21 degrees in ${city}`,
    }),
  },
  onError: ({ error }) => {
    throw error;
  },
});
const kinds = {};
for await (const part of result.fullStream) kinds[part.type] = (kinds[part.type] ?? 0) + 1;
const steps = await result.steps;
console.log(
  JSON.stringify({
    kinds,
    text: await result.text,
    reasoning: steps[0].reasoningText,
    calls: steps[0].toolCalls.map(({ toolName, input }) => ({ toolName, input })),
    reasons: steps.map((step) => step.finishReason),
    usage: await result.totalUsage,
  }),
);
