"""Bodies as columns: decodes JSON, Avro, Protobuf and text in the workers. A bad body is a row with its reason.

In reading order:

- ``walking``: changes the leaves of decoded values.
- ``jsonbodies``: the codec of JSON.
- ``avrobodies``: the codec of Avro.
- ``protobufbodies``: the codec of Protobuf.
- ``codecs``: decodes one body, or many, into values of an Arrow type.
- ``infer``: infers the type of JSON bodies from a sample.
- ``reading``: the columns ``value`` and ``bodyError`` of many messages.
"""
