// What VS Code does with a launch entry of `raydebug vscode --snapshot`, with its own protocol client.
// Arguments: folder of node_modules, python, adapter.py, the snapshot. Prints `ok` at the end; any deviation throws.
const assert = require("assert");
const [, , modules, python, adapter, snapshot] = process.argv;
const { DebugClient } = require(`${modules}/@vscode/debugadapter-testsupport`);

async function main() {
  const client = new DebugClient(python, adapter, "debugpy");
  client.defaultTimeout = 15000;
  await client.start();
  const hello = { adapterID: "debugpy", linesStartAt1: true, columnsStartAt1: true, pathFormat: "path" };
  assert.ok((await client.initializeRequest(hello)).body.supportsConfigurationDoneRequest);
  const stopped = client.waitForEvent("stopped");
  const configured = client.waitForEvent("initialized").then(async () => {
    await client.setBreakpointsRequest({ source: { path: "/workspace/reward.py" }, breakpoints: [{ line: 45 }] });
    await client.setExceptionBreakpointsRequest({ filters: ["uncaught"] });
    await client.configurationDoneRequest();
  });
  const listen = { host: "127.0.0.1", port: 0 };
  const attached = client.attachRequest({ name: "raydebug: crash", type: "debugpy", request: "attach", listen, snapshot });
  await Promise.all([configured, attached]);
  const { reason, threadId } = (await stopped).body;
  assert.strictEqual(reason, "exception");
  const threads = (await client.threadsRequest()).body.threads;
  assert.deepStrictEqual(threads.map((one) => one.id), [1, 2]);
  const frames = (await client.stackTraceRequest({ threadId, startFrame: 0, levels: 20 })).body.stackFrames;
  assert.deepStrictEqual(frames.map((one) => [one.name, one.line]), [["reward", 45], ["Trainer.step", 12], ["main_loop", 900]]);
  const { sourceReference } = frames[0].source;
  const { content } = (await client.sourceRequest({ source: frames[0].source, sourceReference })).body;
  assert.strictEqual(content.split("\n")[44], "        total += score / weights[0]");
  const [locals] = (await client.scopesRequest({ frameId: frames[0].id })).body.scopes;
  const inside = async (variablesReference) =>
    Object.fromEntries((await client.variablesRequest({ variablesReference })).body.variables.map((one) => [one.name, one]));
  const variables = await inside(locals.variablesReference);
  const batch = await inside(variables.batch.variablesReference);
  assert.strictEqual((await inside(batch.weights.variablesReference)).nan.value, "3");
  const frameId = frames[0].id;
  const value = await client.evaluateRequest({ expression: "batch.weights.shape", frameId, context: "hover" });
  assert.strictEqual(value.body.result, "torch.Size([4, 8])");
  await assert.rejects(client.evaluateRequest({ expression: "reward()", frameId, context: "repl" }), /code cannot run/);
  const about = (await client.exceptionInfoRequest({ threadId })).body;
  assert.strictEqual(about.exceptionId, "ZeroDivisionError");
  assert.match(about.description, /caused by KeyError: 'gsm8k'/);
  for (const refused of [client.continueRequest({ threadId }), client.nextRequest({ threadId })])
    await assert.rejects(refused, /a snapshot does not run/);
  await client.disconnectRequest();
  console.log("ok");
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
