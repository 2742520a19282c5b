// What VS Code does with `"target": "all"`, step by step, with its own protocol client (@vscode/debugadapter-testsupport).
// Arguments: folder of node_modules, the gateway's port, the token, the program's file; or, for the adapter that VS Code
// starts itself: folder, python, adapter.py, the program's file. Prints `ok` at the end; any deviation throws.
const assert = require("assert");
const [, , modules, where, second, file] = process.argv;
const { DebugClient } = require(`${modules}/@vscode/debugadapter-testsupport`);
const port = Number(where);
const ways = port
  ? { connect: { host: "127.0.0.1", port }, token: second }
  : { listen: { host: "127.0.0.1", port: 0 }, debugAdapterPath: second, cluster: "default" };

async function open(configuration) {
  const client = port ? new DebugClient("", "", "debugpy") : new DebugClient(where, second, "debugpy");
  client.defaultTimeout = 15000;
  await client.start(port || undefined);
  const children = (client.children = []);
  const dispatch = client.dispatch; // it knows no request of the other side; VS Code answers these
  client.dispatch = function (body) {
    const message = JSON.parse(body);
    if (message.type !== "request") return dispatch.call(this, body);
    children.push(message.arguments.configuration);
    const answer = { seq: 0, type: "response", request_seq: message.seq, command: message.command, success: true };
    const text = JSON.stringify(answer);
    this.outputStream.write(`Content-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`, "utf8");
  };
  const hello = { adapterID: "debugpy", linesStartAt1: true, columnsStartAt1: true, pathFormat: "path" };
  const capabilities = (await client.initializeRequest({ ...hello, supportsStartDebuggingRequest: true })).body;
  assert.ok(capabilities.supportsConfigurationDoneRequest);
  const configured = client.waitForEvent("initialized").then(() => client.configurationDoneRequest());
  const attached = client.attachRequest(configuration);
  return { client, attached, configured };
}

async function openPause(configuration) {
  const { client, attached, configured } = await open(configuration);
  const stopped = client.waitForEvent("stopped");
  await Promise.all([configured, attached]);
  return { client, stopped: (await stopped).body };
}

async function openAll(configuration) {
  const { client: parent, attached, configured } = await open(configuration);
  const children = parent.children;
  await Promise.all([configured, attached]);
  while (children.length < 3) await new Promise((resolve) => setTimeout(resolve, 20));
  return { parent, children };
}

async function main() {
  const parentConfiguration = { name: "raydebug", type: "debugpy", request: "attach", target: "all", justMyCode: false, ...ways };
  if (port) {
    const refused = await open({ ...parentConfiguration, token: "x".repeat(64) });
    await assert.rejects(refused.attached, /the token is not this cluster's/);
    await refused.client.disconnectRequest();
  }
  const { parent, children } = await openAll(parentConfiguration);
  assert.deepStrictEqual((await parent.threadsRequest()).body.threads, []);
  assert.deepStrictEqual(
    children.map((child) => child.name),
    ["pause 1: rank 0 program0.py:12", "pause 2: rank 1 program1.py:12", "pause 3: rank 2 program2.py:11"],
  );

  // Rank 0: stack, scopes, values, a breakpoint with a condition, a step.
  const { client, stopped } = await openPause(children[0]);
  const threadId = stopped.threadId;
  const at = async (one) => (await one.stackTraceRequest({ threadId })).body.stackFrames[0];
  const threads = (await client.threadsRequest()).body.threads;
  assert.ok(threads.some((thread) => thread.id === threadId));
  const frame = await at(client);
  assert.deepStrictEqual([frame.name, frame.line, frame.source.path], ["work", 12, file]);
  const [locals] = (await client.scopesRequest({ frameId: frame.id })).body.scopes;
  const variables = (await client.variablesRequest({ variablesReference: locals.variablesReference })).body.variables;
  assert.strictEqual(variables.find((one) => one.name === "secret").value, "41");
  const value = await client.evaluateRequest({ expression: "secret + 1", frameId: frame.id, context: "watch" });
  assert.strictEqual(value.body.result, "42");
  const breakpoints = [{ line: 14, condition: "i == 2" }];
  const set = await client.setBreakpointsRequest({ source: { path: file }, breakpoints });
  assert.deepStrictEqual(set.body.breakpoints.map((one) => [one.verified, one.line]), [[true, 14]]);
  let next = client.waitForEvent("stopped");
  await client.continueRequest({ threadId });
  assert.strictEqual((await next).body.reason, "breakpoint");
  const i = await client.evaluateRequest({ expression: "i", frameId: (await at(client)).id, context: "hover" });
  assert.strictEqual(i.body.result, "2");
  next = client.waitForEvent("stopped");
  await client.stepInRequest({ threadId });
  assert.strictEqual((await next).body.reason, "step");
  assert.deepStrictEqual([(await at(client)).name, (await at(client)).line], ["reward", 5]);

  // Leave, by closing all, and come back: the same frame. Its stop at the new breakpoint is pause 4.
  await client.disconnectRequest({ terminateDebuggee: true });
  await parent.disconnectRequest();
  const anew = await openAll(parentConfiguration);
  const names = anew.children.map((child) => child.name);
  assert.deepStrictEqual(names[2], "pause 4: rank 0 program0.py:5");
  const again = await openPause(anew.children[2]);
  assert.deepStrictEqual([(await at(again.client)).name, (await at(again.client)).line], ["reward", 5]);
  await again.client.disconnectRequest();

  // Rank 2: the crash.
  const crash = await openPause(anew.children[1]);
  assert.strictEqual(crash.stopped.reason, "exception");
  const about = (await crash.client.exceptionInfoRequest({ threadId: crash.stopped.threadId })).body;
  assert.match(about.exceptionId, /ValueError/);
  assert.match(about.details.message, /rank two/);
  await crash.client.disconnectRequest();

  await anew.parent.disconnectRequest();
  console.log("ok");
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
