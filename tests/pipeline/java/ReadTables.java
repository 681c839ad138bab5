import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.DataFrameReader;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/**
 * Reads tables with Spark's own readers: ReadTables OUTPUT [FORMAT PATH OPTION VALUE]...
 *
 * Writes a file OUTPUT/N for each table: a line of JSON for each row, in the order of the log. An empty OPTION is none.
 */
public final class ReadTables {
    public static void main(String[] words) throws Exception {
        SparkSession spark = SparkSession.builder()
            .master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
            .config("spark.databricks.delta.snapshotPartitions", "1")
            .config("spark.sql.catalog.default_iceberg", "org.apache.iceberg.spark.SparkCatalog")
            .config("spark.sql.catalog.default_iceberg.type", "hadoop")
            .config("spark.sql.catalog.default_iceberg.warehouse", Path.of(words[0]).toUri().toString())
            .getOrCreate();
        for (int at = 1; at < words.length; at += 4) {
            DataFrameReader reader = spark.read().format(words[at]);
            if (!words[at + 2].isEmpty()) {
                reader = reader.option(words[at + 2], words[at + 3]);
            }
            Dataset<Row> rows = reader.load(words[at + 1])
                .selectExpr("physicalOffset", "topic", "queueId", "keys", "recordCRC", "sha2(body, 256) AS body",
                    "unix_millis(storeTimestamp) AS stored")
                .orderBy("physicalOffset");
            List<String> lines = new ArrayList<>(rows.toJSON().collectAsList());
            Files.write(Path.of(words[0], String.valueOf((at - 1) / 4)), lines);
        }
        spark.stop();
    }
}
