import asyncio, json, os, sys
sys.path.insert(0, "/work/wt/pass17")
from pathlib import Path
from openai import AsyncOpenAI
import httpx2
from tests.fakes.gateway import gateway_settings, running_gateway
from gateway.cli import doctor
URL = os.environ.get("URL", "http://127.0.0.1:18417")
async def test_real(database_url):
    dsn = database_url
    models=[{"id":"q","served_as":"tiny-qwen3","format":"passthrough"}]
    settings = gateway_settings(dsn,[URL],models=models)
    async with running_gateway(settings) as g, AsyncOpenAI(base_url=g.url+"/v1", api_key=g.key, max_retries=0) as ai:
        for m in (await ai.models.list()).data: print("MODEL", m.id, m.model_extra)
        r = await ai.responses.create(model="q", input="Say hello.", max_output_tokens=40)
        print("PLAIN", r.status, r.incomplete_details, [i.type for i in r.output], r.usage.input_tokens, r.usage.output_tokens, r.usage.output_tokens_details.reasoning_tokens, getattr(r.usage,"estimated",None))
        n=0
        async with ai.responses.stream(model="q", input="Count.", max_output_tokens=60, reasoning={"effort":"low"}) as s:
            async for e in s: n+=1
            f=await s.get_final_response()
        print("STREAM", n, f.status, [ (i.type) for i in f.output], f.usage.output_tokens)
        tool={"type":"function","name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string","maxLength":5}},"required":["city"],"additionalProperties":False},"strict":True}
        r = await ai.responses.create(model="q", input="Weather in Oslo?", tools=[tool], tool_choice="required", max_output_tokens=400)
        print("CALL", r.status, r.incomplete_details, [i.type for i in r.output], [getattr(i,"arguments",None) for i in r.output])
        r = await ai.responses.create(model="q", input="A number.", max_output_tokens=300, text={"format":{"type":"json_schema","name":"n","strict":True,"schema":{"type":"object","properties":{"n":{"enum":[1,2]}},"required":["n"],"additionalProperties":False}}})
        print("JSON", r.status, r.incomplete_details, r.error, r.output_text[:200])
        r = await ai.responses.create(model="q", input="Hi.", max_output_tokens=30, background=True, store=True)
        while r.status in ("queued","in_progress"):
            await asyncio.sleep(.2); r = await ai.responses.retrieve(r.id)
        print("BACKGROUND", r.status, [i.type for i in r.output])
        r2 = await ai.responses.create(model="q", input="And?", max_output_tokens=20, previous_response_id=r.id)
        print("CHAIN", r2.status, r2.usage.input_tokens)
        c = await ai.chat.completions.create(model="q", messages=[{"role":"user","content":"Hi"}], max_tokens=20)
        print("CHAT", c.choices[0].finish_reason, repr(c.choices[0].message.content), c.usage)
        try:
            await ai.responses.create(model="q", input="word "*9000)
        except Exception as e: print("LONG", type(e).__name__, str(e)[:300])
        t=asyncio.create_task(ai.responses.create(model="q", input="x "*3600, max_output_tokens=2000))
        try: print("LONGISH", (await t).status)
        except Exception as e: print("LONGISH", type(e).__name__, str(e)[:300])
