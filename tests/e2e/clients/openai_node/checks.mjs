// openai for Node.js: what its documentation shows, each in one function.

import OpenAI from 'openai'
import { zodResponsesFunction, zodTextFormat } from 'openai/helpers/zod'
import { z } from 'zod'

import { MODEL, answer } from '../answering/answering.mjs'

const client = new OpenAI({ maxRetries: 0 })
const Place = z.object({ location: z.string() })
const weather = zodResponsesFunction({
  name: 'get_weather',
  description: 'Current weather.',
  parameters: Place,
})

async function create() {
  const response = await client.responses.create({ model: MODEL, input: 'Hello there' })
  return { status: response.status, text: response.output_text, request: response._request_id }
}

async function stream() {
  const events = client.responses.stream({ model: MODEL, input: 'Hello there' })
  const numbers = []
  let said = ''
  for await (const event of events) {
    numbers.push(event.sequence_number)
    if (event.type === 'response.output_text.delta') said += event.delta
  }
  const final = await events.finalResponse()
  const stored = await client.responses.retrieve(final.id)
  return { numbers, said, final: final.output_text, stored: stored.output_text }
}

async function resume() {
  const asked = { model: MODEL, input: 'Hello there', background: true, stream: true }
  const seen = []
  const queued = await client.responses.create(asked)
  for await (const event of queued) {
    seen.push(event)
    if (seen.length === 6) break
  }
  const { id } = seen[0].response
  const rest = await client.responses.retrieve(id, {
    stream: true,
    starting_after: seen.at(-1).sequence_number,
  })
  for await (const event of rest) seen.push(event)
  const helper = client.responses.stream({ response_id: id, starting_after: 3 })
  const final = await helper.finalResponse()
  return {
    numbers: seen.map((event) => event.sequence_number),
    last: seen.at(-1).type,
    final: final.output_text,
  }
}

async function cancel() {
  const input = '[[sim tokens_per_s=100 tokens=400 think=none]] go'
  const queued = await client.responses.create({ model: MODEL, input, background: true })
  const cancelled = await client.responses.cancel(queued.id)
  return { queued: queued.status, cancelled: cancelled.status }
}

async function tools({ stateful }) {
  const context = [{ role: 'user', content: 'What is the weather in Paris?' }]
  const first = await client.responses.parse({
    model: MODEL,
    input: context,
    tools: [weather],
    store: stateful,
  })
  const call = first.output.find((item) => item.type === 'function_call')
  const result = { type: 'function_call_output', call_id: call.call_id, output: '17 degrees' }
  const second = await client.responses.create({
    model: MODEL,
    input: stateful ? [result] : [...context, ...first.output, result],
    previous_response_id: stateful ? first.id : undefined,
    tools: [weather],
    store: stateful,
  })
  return { arguments: call.parsed_arguments, text: second.output_text }
}

async function parse() {
  const response = await client.responses.parse({
    model: MODEL,
    input: 'The weather in Paris, please.',
    text: { format: zodTextFormat(Place, 'place') },
  })
  return response.output_parsed
}

async function conversations() {
  const items = [{ role: 'user', content: 'My name is Ada.' }]
  const conversation = await client.conversations.create({ items, metadata: { a: 'b' } })
  const response = await client.responses.create({
    model: MODEL,
    input: 'What is my name?',
    conversation: conversation.id,
  })
  const kinds = []
  const pages = client.conversations.items.list(conversation.id, { limit: 1, order: 'asc' })
  for await (const item of pages) kinds.push(item.type)
  const deleted = await client.conversations.delete(conversation.id)
  return { text: response.output_text, kinds, deleted: deleted.deleted }
}

async function inputItems() {
  const input = [1, 2, 3].map((number) => ({ role: 'user', content: `text ${number}` }))
  const response = await client.responses.create({ model: MODEL, input })
  const texts = []
  const pages = client.responses.inputItems.list(response.id, { limit: 1, order: 'asc' })
  for await (const item of pages) texts.push(item.content[0].text)
  await client.responses.delete(response.id)
  return { texts, gone: await refusal(client.responses.retrieve(response.id)) }
}

async function refusal(promise) {
  try {
    await promise
  } catch (error) {
    const { status, code, param, type, requestID } = error
    return { kind: error.constructor.name, status, code, param, type, named: Boolean(requestID) }
  }
  return null
}

async function errors() {
  const stranger = client.withOptions({ apiKey: 'gw-wrong' })
  const hot = { model: MODEL, input: 'x', temperature: 3 }
  return {
    key: await refusal(stranger.models.list()),
    model: await refusal(client.responses.create({ model: 'gpt-9', input: 'x', stream: true })),
    value: await refusal(client.responses.create(hot)),
  }
}

async function broken() {
  const input = '[[sim tokens=100 think=none die_after=20]] go'
  return await refusal(client.responses.stream({ model: MODEL, input }).finalResponse())
}

async function retried() {
  const tries = []
  const patient = client.withOptions({
    maxRetries: 2,
    fetch: async (url, init) => {
      const reply = await fetch(url, init)
      const { headers } = reply
      tries.push({ status: reply.status, wait: headers.get('retry-after') })
      return reply
    },
  })
  const input = '[[sim status=429 times=1]] node tries again'
  const response = await patient.responses.create({ model: MODEL, input })
  return { tries, status: response.status }
}

function counting(apiKey, tries) {
  return client.withOptions({
    apiKey,
    maxRetries: 2,
    fetch: async (url, init) => {
      const at = performance.now()
      const reply = await fetch(url, init)
      const told = reply.headers.get('retry-after-ms')
      tries.push({ at, status: reply.status, told: told === null ? null : Number(told) })
      return reply
    },
  })
}

async function limited({ key, times }) {
  const tries = []
  const one = counting(key, tries)
  const asked = { model: MODEL, input: 'x', store: false, max_output_tokens: 16 }
  for (let n = 0; n < times; n++) await one.responses.create(asked)
  const refused = tries.findIndex((reply) => reply.status === 429)
  const again = tries[refused + 1]
  return {
    statuses: [tries[refused]?.status, again?.status],
    told: tries[refused]?.told,
    waited: again === undefined ? null : again.at - tries[refused].at,
    tries: tries.length,
  }
}

async function overBudget({ key }) {
  const tries = []
  const error = await refusal(counting(key, tries).responses.create({ model: MODEL, input: 'x' }))
  return { error, tries: tries.length }
}

async function models() {
  const known = []
  for await (const model of client.models.list()) known.push(model.id)
  return { known, one: (await client.models.retrieve(`openai/${MODEL}`)).id }
}

async function count() {
  const counted = await client.responses.inputTokens.count({ model: MODEL, input: 'Hello there' })
  const response = await client.responses.create({ model: MODEL, input: 'Hello there' })
  return { counted: counted.input_tokens, used: response.usage.input_tokens }
}

async function compact() {
  const input = [{ role: 'user', content: 'My name is Ada.' }]
  const compacted = await client.responses.compact({ model: MODEL, input })
  const response = await client.responses.create({
    model: MODEL,
    input: [...compacted.output, { role: 'user', content: 'What is my name?' }],
  })
  return { kinds: compacted.output.map((item) => item.type), text: response.output_text }
}

async function chat() {
  const messages = [{ role: 'user', content: 'Hello there' }]
  const whole = await client.chat.completions.create({ model: MODEL, messages })
  const streamed = client.chat.completions.stream({ model: MODEL, messages })
  return {
    whole: whole.choices[0].message.content,
    streamed: await streamed.finalContent(),
    reason: whole.choices[0].finish_reason,
  }
}

async function chatTools() {
  const runner = client.chat.completions.runTools({
    model: MODEL,
    messages: [{ role: 'user', content: 'What is the weather in Paris?' }],
    tools: [
      {
        type: 'function',
        function: {
          name: 'get_weather',
          description: 'Current weather.',
          parameters: z.toJSONSchema(Place),
          parse: JSON.parse,
          function: ({ location }) => `17 degrees in ${location}`,
        },
      },
    ],
  })
  return await runner.finalContent()
}

// As the SDK has one URL of its own for the exchange, whoever has another rewrites it.
const EXCHANGE = 'https://auth.openai.com/oauth/token'

async function workload({ url, provider, account, token }) {
  const asked = []
  const one = new OpenAI({
    maxRetries: 0,
    apiKey: null,
    workloadIdentity: {
      identityProviderId: provider,
      serviceAccountId: account,
      provider: { tokenType: 'jwt', getToken: async () => token },
    },
    fetch: (to, init) => {
      asked.push(String(to) === EXCHANGE ? 'exchange' : new URL(to).pathname)
      return fetch(String(to) === EXCHANGE ? url : to, init)
    },
  })
  const response = await one.responses.create({ model: MODEL, input: 'Hello there' })
  const again = await one.responses.retrieve(response.id)
  return { text: again.output_text, asked }
}

async function bearer({ token, organization }) {
  const one = new OpenAI({ maxRetries: 0, apiKey: async () => token, organization })
  const response = await one.responses.create({ model: MODEL, input: 'Hello there' })
  const without = new OpenAI({ maxRetries: 0, apiKey: token })
  return { text: response.output_text, without: await refusal(without.models.list()) }
}

// What the fetch of a page does (https://fetch.spec.whatwg.org): it asks first whether it may send
// these headers, and of an answer it shows the headers that it is told to, and those of the list.
const SHOWN = ['cache-control', 'content-language', 'content-length', 'content-type', 'expires']

function ofPage(origin, asked) {
  return async (url, init) => {
    const headers = new Headers(init.headers)
    const names = [...headers.keys()].filter((name) => name !== 'accept').sort()
    const preflight = await fetch(url, {
      method: 'OPTIONS',
      headers: {
        origin,
        'access-control-request-method': init.method.toUpperCase(),
        'access-control-request-headers': names.join(','),
      },
    })
    const allowed = (preflight.headers.get('access-control-allow-headers') ?? '').toLowerCase()
    const may = allowed.split(',').map((name) => name.trim())
    const isOf = (answer) => ['*', origin].includes(answer.headers.get('access-control-allow-origin'))
    const missing = names.filter((name) => !may.includes(name))
    asked.push({ names, missing, status: preflight.status })
    if (!preflight.ok || !isOf(preflight) || missing.length) throw new TypeError('Failed to fetch')
    headers.set('origin', origin)
    const answer = await fetch(url, { ...init, headers })
    if (!isOf(answer)) throw new TypeError('Failed to fetch')
    const exposed = (answer.headers.get('access-control-expose-headers') ?? '').toLowerCase()
    const readable = [...SHOWN, ...exposed.split(',').map((name) => name.trim())]
    const shown = [...answer.headers].filter(([name]) => readable.includes(name))
    return new Response(answer.body, { status: answer.status, headers: shown })
  }
}

async function page({ origin }) {
  const asked = []
  const one = new OpenAI({
    maxRetries: 0,
    dangerouslyAllowBrowser: true,
    fetch: ofPage(origin, asked),
  })
  const refused = await refusal(one.responses.create({ model: 'gpt-9', input: 'x' }))
  if (refused.kind === 'APIConnectionError') return { refused }
  const { data, response } = await one.responses
    .create({ model: MODEL, input: 'Hello there' })
    .withResponse()
  const events = one.responses.stream({ model: MODEL, input: 'Hello there' })
  const streamed = (await events.finalResponse()).output_text
  await one.responses.delete(data.id)
  return {
    refused,
    text: data.output_text,
    streamed,
    request: data._request_id,
    version: response.headers.get('openai-version'),
    asked,
  }
}

const MARKERS = /[【】†]/
const search = { type: 'web_search' }
const python = { type: 'code_interpreter', container: { type: 'auto' } }
const typesOf = ({ output }) =>
  output.map((item) => item.type).filter((type) => type !== 'reasoning')

async function searched({ asked }) {
  const include = ['web_search_call.action.sources']
  const events = client.responses.stream({ model: MODEL, input: asked, tools: [search], include })
  const seen = []
  for await (const event of events) seen.push(event)
  const final = await events.finalResponse()
  const [part] = final.output.at(-1).content
  const of = (type) => seen.filter((event) => event.type === type)
  const said = of('response.output_text.delta').map((event) => event.delta)
  return {
    kinds: typesOf(final),
    steps: seen.map((event) => event.type.split('.web_search_call.')[1]).filter(Boolean),
    added: of('response.output_text.annotation.added').map((event) => event.annotation),
    annotations: part.annotations,
    cited: part.annotations.map((one) => part.text.slice(one.start_index, one.end_index)),
    sources: final.output.find((item) => item.action?.sources)?.action.sources.length ?? 0,
    same: said.join('') === final.output_text,
    marked: MARKERS.test(said.join('') + final.output_text),
  }
}

async function computed({ asked }) {
  const include = ['code_interpreter_call.outputs']
  const events = client.responses.stream({ model: MODEL, input: asked, tools: [python], include })
  let code = ''
  for await (const event of events) {
    if (event.type === 'response.code_interpreter_call_code.delta') code += event.delta
  }
  const final = await events.finalResponse()
  const call = final.output.find((item) => item.type === 'code_interpreter_call')
  return {
    same: code === call.code,
    logs: call.outputs.map((output) => output.logs.trim()),
    text: final.output_text,
  }
}

async function approved({ url, asked, approve, stored }) {
  const tools = [
    { type: 'mcp', server_label: 'shop', server_url: url, require_approval: 'always' },
  ]
  const given = { model: MODEL, tools, store: stored }
  const first = await client.responses.create({ ...given, input: asked })
  const request = first.output.find((item) => item.type === 'mcp_approval_request')
  const reply = {
    type: 'mcp_approval_response',
    approval_request_id: request.id,
    approve,
    ...(approve ? {} : { reason: 'not today' }),
  }
  const history = [{ role: 'user', content: asked }, ...first.output, reply]
  const second = {
    ...given,
    input: stored ? [reply] : history,
    previous_response_id: stored ? first.id : undefined,
  }
  const final = await client.responses.create(second)
  return {
    requested: request.name,
    called: final.output.filter((item) => item.type === 'mcp_call').map((item) => item.output),
    text: final.output_text,
    again: approve ? await refusal(client.responses.create(second)) : null,
  }
}

async function hostedConversation({ url, asked, following }) {
  const conversation = (await client.conversations.create({})).id
  const mcp = { type: 'mcp', server_label: 'shop', server_url: url, require_approval: 'never' }
  const given = { model: MODEL, conversation, tools: [search, python, mcp] }
  const first = await client.responses.create({ ...given, input: asked })
  const listed = []
  const pages = client.conversations.items.list(conversation, { limit: 2, order: 'asc' })
  for await (const item of pages) listed.push(item)
  const second = await client.responses.create({ ...given, input: following })
  const call = first.output.find((item) => item.type === 'mcp_call')
  const one = await client.conversations.items.retrieve(call.id, { conversation_id: conversation })
  const kept = listed.filter((item) => item.type !== 'message' || item.role !== 'user')
  await client.conversations.delete(conversation)
  return {
    kinds: typesOf(first),
    ids: first.output.map((item) => item.id),
    listed: kept.map((item) => item.id),
    output: one.output,
    goesOn: typesOf(second),
    text: second.output_text,
  }
}

await answer({
  searched, computed, approved, hostedConversation,
  create, stream, resume, cancel, tools, parse, conversations, inputItems, errors, broken, retried,
  limited, overBudget, workload, bearer, page, models, count, compact, chat, chatTools,
})
