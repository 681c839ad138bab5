"""Reads all brokers of a cluster on a Spark cluster: first as a batch, then as a stream. It tells each message's hash.

``python clusterreader.py MASTER ADDRESS BROKERS FOLDER SPLIT_BYTES JVM_OPTIONS``. In each run a task that has got its
first messages touches ``FOLDER/RUN-begun-NAME-ID``, named after the broker's node that sent them. It takes no more
until there is ``FOLDER/RUN-go``. The rows are in ``FOLDER/RUN.parquet``: brokerName, brokerId, the task's partition,
the physical offset, and size and SHA-256 of the record, which is built again from all columns.
"""

import sys
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame

from rmqha.pipeline.encode import encode
from rmqha.pipeline.session import session

BATCH, STREAM = "batch", "stream"
FORMAT = "rmqha"
PORTRAIT = pa.schema(
    [
        ("brokerName", pa.string()),
        ("brokerId", pa.int32()),
        ("partition", pa.int32()),
        ("physicalOffset", pa.int64()),
        ("size", pa.int32()),
        ("sha256", pa.binary()),
    ]
)
PORTRAIT_DDL = "brokerName string, brokerId int, partition int, physicalOffset bigint, size int, sha256 binary"


def portraits(folder: Path, run: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What an executor does with the rows of a task."""

    def portray(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "it is a task"
        for batch in batches:
            if not batch.num_rows:
                continue
            name, number = (batch[column][0].as_py() for column in ("brokerName", "brokerId"))
            while not (folder / f"{run}-go").exists():
                (folder / f"{run}-begun-{name}-{number}").touch()
                time.sleep(0.05)  # in Spark's worker, which has nothing of ``tests``
            records = encode(batch).to_pylist()
            yield pa.record_batch(
                [
                    batch["brokerName"],
                    batch["brokerId"],
                    pa.repeat(pa.scalar(context.partitionId(), pa.int32()), len(records)),
                    batch["physicalOffset"],
                    pa.array(map(len, records), pa.int32()),
                    pa.array([sha256(record).digest() for record in records], pa.binary()),
                ],
                schema=PORTRAIT,
            )

    return portray


def main(master: str, address: str, brokers: str, output: str, split_bytes: str, jvm: str) -> None:
    """Both runs."""
    folder = Path(output)
    hosts = {"spark.driver.host": address, "spark.driver.bindAddress": address, "spark.executor.extraJavaOptions": jvm}
    small = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100", "spark.executor.memory": "512m"}
    spark = session(master, {**hosts, **small})
    options = {"splitBytes": split_bytes, "batchBytes": "256k", "properties": "raw"}

    def portrayed(frame: DataFrame, run: str) -> DataFrame:
        return frame.mapInArrow(portraits(folder, run), PORTRAIT_DDL)

    def keep(frame: DataFrame, run: str) -> None:
        pq.write_table(frame.toArrow(), folder / f"{run}.parquet")

    keep(portrayed(spark.read.format(FORMAT).options(**options).load(brokers), BATCH), BATCH)
    rows = portrayed(spark.readStream.format(FORMAT).options(**options).load(brokers), STREAM)
    to_memory = rows.writeStream.format("memory").queryName("rows")
    query = to_memory.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    keep(spark.table("rows"), STREAM)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
