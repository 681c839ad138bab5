'use strict';

// What the interop tests ask of the Node client, one command a process.
//
//	produce NAMESRV TOPIC MODE FIRST COUNT BODY_BYTES   MODE: sync, async (all at once), delay (level 1), steady (from
//	                                                    FIRST on, until it is killed)
//	consume NAMESRV TOPIC GROUP TAGS MEMBERS            so many push consumers of one group, until standard input
//	                                                    ends; "broadcast": two consumers, which both get all messages;
//	                                                    "failing": one, which fails for each message at first
//
// A line of JSON for each answer or message. Message 7 has the body "k7|k7|…", the key "k7", one of four tags, and the
// property "number". TAGS that begin with "sql:" are an SQL expression. ACCESS_KEY and SECRET_KEY sign all requests.

const { Consumer, Message, Producer } = require('ali-ons');

const SHORT_MS = 500;
const QUIET = { info() {}, debug() {}, warn() {}, error: console.error };
const INTERVALS = {
  pollNameServerInteval: SHORT_MS,
  heartbeatBrokerInterval: SHORT_MS,
  rebalanceInterval: SHORT_MS,
  persistConsumerOffsetInterval: SHORT_MS,
  pullTimeDelayMillsWhenException: SHORT_MS,
};

function options(nameSrv, more) {
  const keys = process.env.ACCESS_KEY ? { accessKey: process.env.ACCESS_KEY, secretKey: process.env.SECRET_KEY } : {};
  return { nameSrv, httpclient: {}, logger: QUIET, ...INTERVALS, ...keys, ...more };
}

function print(found) {
  process.stdout.write(`${JSON.stringify(found)}\n`);
}

function message(topic, number, size) {
  const unit = `k${number}|`;
  const made = new Message(topic, `tag${number % 4}`, unit.repeat(Math.ceil(size / unit.length)).slice(0, size));
  made.keys = [ `k${number}` ];
  made.properties.number = String(number);
  return made;
}

async function produce([ nameSrv, topic, mode, first, count, size ]) {
  const sendMsgTimeout = mode === 'steady' ? 10000 : 60000;
  const producer = new Producer(options(nameSrv, { producerGroup: 'PGNode', sendMsgTimeout }));
  producer.on('error', error => console.error(error.message));
  await producer.ready();

  async function send(number) {
    const made = message(topic, number, Number(size));
    if (mode === 'delay') made.delayTimeLevel = 1;
    const result = await producer.send(made);
    print({ status: result.sendStatus, msg_id: result.msgId, keys: `k${number}` });
  }

  if (mode === 'steady') {
    for (let number = Number(first); ; number++) {
      await send(number).catch(error => print({ status: error.message, keys: `k${number}` }));
      await new Promise(resolve => setTimeout(resolve, 20));
    }
  }
  const numbers = Array.from({ length: Number(count) }, (_, index) => Number(first) + index);
  if (mode === 'async') {
    await Promise.all(numbers.map(send));
  } else {
    for (const number of numbers) await send(number);
  }
}

async function consume([ nameSrv, topic, group, tags, members ]) {
  const isBroadcast = members === 'broadcast';
  const count = isBroadcast ? 2 : Number(members) || 1;
  const subscription = tags.startsWith('sql:') ? { expressionType: 'SQL92', subString: tags.slice(4) } : tags;
  process.stdin.on('end', () => process.exit(0)).resume();
  for (let member = 0; member < count; member++) {
    const consumer = new Consumer(options(nameSrv, {
      consumerGroup: group,
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
      instanceName: `${process.pid}-${member}`,
      isBroadcast,
    }));
    consumer.on('error', error => console.error(error.message));
    consumer.subscribe(topic, subscription, async found => {
      if (members === 'failing' && found.reconsumeTimes === 0) throw new Error('it fails at first');
      print({
        member,
        msg_id: found.msgId,
        body: found.body.toString('base64'),
        tags: found.tags,
        keys: found.keys,
        properties: found.properties,
        reconsumed: found.reconsumeTimes,
        queue: found.queueId,
        host: found.storeHost,
      });
    });
  }
}

const [ command, ...words ] = process.argv.slice(2);
const run = { produce, consume }[command];
run(words).then(() => command === 'produce' && process.exit(0), error => {
  console.error(error);
  process.exit(1);
});
