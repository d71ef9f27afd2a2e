//! The campaign and the soak, short.

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use std::process::{Command, Output};

    fn endurance(args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_kbtp-endurance"))
            .args(args)
            .output()
            .unwrap()
    }

    fn said(output: &Output) -> String {
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Its document; it must have found nothing.
    fn passed(args: &[&str]) -> Value {
        let output = endurance(args);
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn kills(seed: &str) {
        let found = passed(&["crash", "--kills=50", "--seed", seed, "--json"]);
        assert!(found["kills"].as_u64() >= Some(50), "{found}");
        let kinds = found["by_kind"].as_array().unwrap().len();
        assert!(kinds >= 7, "hardly anything was killed: {found}");
        for kind in ["load", "alloc", "bind", "free"] {
            let met = &found["kills_with_in_flight"][kind];
            assert!(met.as_u64() > Some(0), "no kill met a {kind}: {found}");
        }
        println!("{found:#}");
    }

    #[test]
    fn fifty_kills_lose_nothing_and_leave_nothing() {
        kills("1");
    }

    #[test]
    fn fifty_other_kills_lose_nothing_and_leave_nothing() {
        kills("2");
    }

    /// What grows takes longer to tell (`make soak`); what is left behind is told at once.
    #[test]
    fn a_thousand_sessions_leave_every_count_as_it_was() {
        let found = passed(&["soak", "--duration=5s", "--cycles=1000", "--json"]);
        assert!(found["sessions"].as_u64() >= Some(1000), "{found}");
        assert!(found["counts"].as_u64() >= Some(40), "{found}");
        assert_eq!(found["counts_changed"].as_array().map(Vec::len), Some(0));
    }

    #[test]
    fn sessions_that_are_never_let_go_are_found() {
        let args = [
            "soak",
            "--duration=1s",
            "--cycles=50",
            "--plant=sessions",
            "--patience=1s",
        ];
        let output = endurance(&args);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        for what in [
            "sessions: ",
            "churn sockets: ",
            "target descriptors: ",
            "quota granted: ",
        ] {
            assert!(said.contains(what), "{what}{said}");
        }
    }

    #[test]
    fn memory_that_is_never_let_go_is_found() {
        let args = ["soak", "--duration=10s", "--cycles=200", "--plant=memory"];
        let output = endurance(&args);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let grows = "resident memory of churn grows";
        assert!(said.contains(grows), "{said}");
    }
}
