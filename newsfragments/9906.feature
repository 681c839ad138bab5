`rmqha job stats` and `rmqha job archive` take the address of a broker, `rmqha://HOST:PORT`, instead of a store.
