//! The benchmark as a process: a short run of it.

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use std::process::Command;

    fn bench(args: &[&str]) -> (Option<i32>, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_kbtp-bench"))
            .args(args)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    #[test]
    fn each_point_has_its_figure_its_limit_and_their_ratio() {
        let (code, stdout, stderr) = bench(&[
            "--json",
            "--sizes=4KiB",
            "--depths=1,2",
            "--sessions=1,2",
            "--rounds=1",
            "--window=10ms",
        ]);
        assert_eq!(code, Some(0), "{stderr}");
        let report: Value = serde_json::from_str(&stdout).unwrap();
        let rows = report["rows"].as_array().unwrap();
        // Two operations, two depths, two numbers of sessions, idle and busy.
        assert_eq!(rows.len(), 16);
        for row in rows {
            for of in ["kbtp", "limit"] {
                assert!(row[of]["octets_per_s"].as_f64().unwrap() > 0.0, "{row}");
            }
            assert!(row["throughput_ratio"].as_f64().unwrap() > 0.0, "{row}");
            assert_eq!(row["latency_ratio"].is_null(), row["depth"] != 1, "{row}");
        }
    }

    #[test]
    fn a_bound_that_cannot_be_kept_fails() {
        let point = [
            "--ops=load",
            "--sizes=4KiB",
            "--depths=1",
            "--sessions=1",
            "--load=idle",
        ];
        let quick = ["--rounds=1", "--window=10ms"];
        let (code, _, stderr) = bench(&[&point[..], &quick, &["--min-throughput=1000"]].concat());
        assert_eq!(code, Some(1), "{stderr}");
        assert!(
            stderr.contains("load 4KiB, depth 1: throughput"),
            "{stderr}"
        );
    }

    #[test]
    fn wrong_words_are_usage_errors() {
        assert_eq!(bench(&["--sizes=64KB"]).0, Some(2));
        assert_eq!(bench(&["--sizes=0"]).0, Some(2));
        assert_eq!(bench(&["--max-cpu=0"]).0, Some(2));
    }
}
