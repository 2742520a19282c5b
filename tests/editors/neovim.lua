-- What a person does in Neovim with the configuration of docs/02-attach.md; prints `ok`, or says what was not as it should.
local dap = require("dap")

dap.adapters.raydebug = { type = "executable", command = vim.env.RAYDEBUG, args = { "adapter" } }

local stopped, children = {}, 0
dap.listeners.after.event_stopped["test"] = function(session, body)
  stopped[session.config.name] = { session = session, thread = body.threadId }
end

local function expect(what, condition)
  if not vim.wait(20000, condition, 20) then
    io.stderr:write("not so: " .. what .. ": " .. vim.inspect(vim.tbl_keys(stopped)) .. "\n")
    os.exit(1)
  end
end

dap.run({ name = "raydebug", type = "raydebug", request = "attach", target = "all", justMyCode = false })
expect("three sessions have stopped", function() return vim.tbl_count(stopped) == 3 end)

local first = stopped["pause 1: rank 0 program0.py:12"]
expect("the first session's name", function() return first ~= nil end)
expect("its frame is there", function() return first.session.current_frame ~= nil end)
local frame, value = first.session.current_frame, nil
expect("the line", function() return frame.line == 12 and frame.name == "work" end)
first.session:evaluate("secret", function(_, answer) value = answer and answer.result end)
expect("the value", function() return value == "41" end)

local moved = false
dap.listeners.after.event_stopped["moved"] = function() moved = true end
first.session:request("next", { threadId = first.thread }, function() end)
expect("a step", function() return moved end)

local closed = 0
for _, one in pairs(stopped) do
  one.session:disconnect({ terminateDebuggee = false }, function() closed = closed + 1 end)
end
expect("all sessions end", function() return closed == 3 end)
print("ok")
