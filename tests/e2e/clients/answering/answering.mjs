// Runs the checks of one client: orders come by stdin, answers go by stdout, one JSON line each.
//
// An order is `{"check": name, "given": {…}}`; its answer `{"found": …}`, or `{"broke": stack}`.

import { writeSync } from 'node:fs'
import { createInterface } from 'node:readline'

export const BASE_URL = process.env.OPENAI_BASE_URL
export const API_KEY = process.env.OPENAI_API_KEY
export const MODEL = process.env.TEST_MODEL
export const SLOWLY = '[[sim tokens_per_s=400]] Hello there' // so that a stream has several parts

export async function answer(checks) {
  console.log = console.info = console.error // what a client prints of its own
  for await (const line of createInterface({ input: process.stdin })) {
    const { check, given } = JSON.parse(line)
    let reply
    try {
      reply = { found: (await checks[check](given)) ?? null }
    } catch (error) {
      reply = { broke: String(error?.stack ?? error) }
    }
    writeSync(1, JSON.stringify(reply) + '\n')
  }
  process.exit(0) // a client may have left connections open
}
