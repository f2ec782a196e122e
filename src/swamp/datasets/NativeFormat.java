package swamp;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.WeakHashMap;
import java.util.function.BiFunction;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.parquet.ParquetScan;
import org.apache.spark.sql.execution.datasources.v2.parquet.ParquetScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.parquet.ParquetTable;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/**
 * The format "swamp" in sessions that have a planner: the registered Python source, except that a batch read of Parquet
 * content which Spark can open is a scan of Spark's own. Compiled while Spark runs (compile.py); decision 0026.
 */
public class NativeFormat extends PythonDataSourceV2 implements DataSourceRegister {
    /** By session: a function of Python from a read, as JSON, to a ParquetTable or null. */
    public static final Map PLANNERS = Collections.synchronizedMap(new WeakHashMap());
    /** Shown with each question: py4j lets anybody ask who finds the port on which Python answers. */
    public static final String SECRET = UUID.randomUUID().toString();

    private static final ObjectMapper JSON = new ObjectMapper();
    private String name;
    private ParquetTable planned;

    /** Spark asks every source for its name whenever it looks for one: sessions without a planner do not find this. */
    public String shortName() {
        Option active = SparkSession.getActiveSession();
        return active.isDefined() && PLANNERS.containsKey(active.get()) ? "swamp" : "swamp (elsewhere)";
    }

    public void setShortName(String given) {
        super.setShortName(given);
        name = given;
    }

    public StructType inferSchema(CaseInsensitiveStringMap options) {
        planned = plan(options, null);
        return planned == null ? super.inferSchema(options) : planned.schema();
    }

    public Table getTable(StructType columns, Transform[] partitioning, Map properties) {
        return new SwampTable(this, name, columns, planned);
    }

    static ParquetTable plan(CaseInsensitiveStringMap options, StructType columns) {
        BiFunction planner = (BiFunction) PLANNERS.get(SparkSession.active());
        if (planner == null || !options.containsKey("model") || options.containsKey("table")) {
            return null;
        }
        Map asked = new HashMap();
        asked.put("options", options.asCaseSensitiveMap());
        asked.put("columns", columns == null ? null : columns.json());
        try {
            return (ParquetTable) planner.apply(SECRET, JSON.writeValueAsString(asked));
        } catch (py4j.Py4JException error) {  // Python has gone, or cannot answer
            return null;
        } catch (JsonProcessingException error) {
            return null;
        }
    }
}

/** Whatever is written goes to the Python source, by what is inherited; no write builder of Parquet is ever made. */
class SwampTable extends PythonTable {
    private ParquetTable planned;
    private boolean asked;

    SwampTable(PythonDataSourceV2 source, String name, StructType columns, ParquetTable planned) {
        super(source, name, columns);
        this.planned = planned;
        this.asked = planned != null;
    }

    /** With columns of the user, which a write has as well, nobody was asked yet: once for all scans of this table. */
    public synchronized ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        if (!asked) {
            planned = NativeFormat.plan(options, schema());
            asked = true;
        }
        return planned == null ? ofPython(options) : new SwampScanBuilder(this, planned, options);
    }

    ScanBuilder ofPython(CaseInsensitiveStringMap options) {
        return super.newScanBuilder(options);
    }
}

class SwampScanBuilder extends ParquetScanBuilder {
    private final SwampTable table;
    private final CaseInsensitiveStringMap asked;

    SwampScanBuilder(SwampTable table, ParquetTable parquet, CaseInsensitiveStringMap asked) {
        super(parquet.sparkSession(), parquet.fileIndex(), parquet.schema(), parquet.dataSchema(), parquet.options());
        this.table = table;
        this.asked = asked;
    }

    public ParquetScan build() {
        return new NativeParquetScan(super.build(), table, asked);
    }
}

/** Spark's scan; a stream, which begins with a scan, too, goes to the Python source. Plans show the name. */
class NativeParquetScan extends ParquetScan {
    private final transient SwampTable table;
    private final transient CaseInsensitiveStringMap asked;

    NativeParquetScan(ParquetScan scan, SwampTable table, CaseInsensitiveStringMap asked) {
        super(scan.sparkSession(), scan.hadoopConf(), scan.fileIndex(), scan.dataSchema(), scan.readDataSchema(),
            scan.readPartitionSchema(), scan.pushedFilters(), scan.options(), scan.pushedAggregate(),
            scan.partitionFilters(), scan.dataFilters(), scan.pushedVariantExtractions());
        this.table = table;
        this.asked = asked;
    }

    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        return table.ofPython(asked).build().toMicroBatchStream(checkpoint);
    }
}
