"""Bodies as columns: decodes JSON, Avro, Protobuf and text in the workers. A bad body is a row with its reason.

In reading order:

- ``formats``: what bodies are, and where their schema is.
- ``codecs``: decodes one body, or many, into values of an Arrow type.
- ``walking``: changes the leaves of decoded values.
- ``jsonbodies``: the codec of JSON.
- ``avrobodies``: the codec of Avro.
- ``protobufbodies``: the codec of Protobuf.
- ``infer``: infers the type of JSON bodies from a sample.
- ``reading``: the columns ``value`` and ``bodyError`` of many messages.
"""
