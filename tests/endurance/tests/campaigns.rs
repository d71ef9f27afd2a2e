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

    /// Its document; it must have found nothing, and end with `code` and the verdict that goes with it.
    fn ended(code: i32, args: &[&str]) -> Value {
        let output = endurance(args);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let verdict = if code == 0 { "PASSED" } else { "INCONCLUSIVE" };
        assert_eq!(found["verdict"], verdict, "{said}");
        assert!(said.starts_with(verdict), "{said}");
        found
    }

    #[test]
    fn wrong_usage_starts_nothing_and_names_what_there_is() {
        let before =
            std::env::temp_dir().join(format!("kbtp-endurance-usage-{}", std::process::id()));
        std::fs::create_dir_all(&before).unwrap();
        for (args, named) in [
            (
                &["crash", "--only=nosuch"][..],
                "initiator, coming back; kbtp put; agent",
            ),
            (&["crash", "--kills=0"], "--kills"),
            (&["soak", "--minutes=18446744073709551615"], "--minutes"),
            (&["soak", "--duration=0s"], "30d at most"),
            (&["soak", "--cycles=0"], "--cycles"),
        ] {
            let output = Command::new(env!("CARGO_BIN_EXE_kbtp-endurance"))
                .args(args)
                .env("TMPDIR", &before)
                .output()
                .unwrap();
            let said = said(&output);
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains(named) && !said.contains("panicked"), "{said}");
        }
        // Gone only if nothing was left in it.
        std::fs::remove_dir(&before).unwrap();
    }

    fn kills(seed: &str) {
        let found = ended(0, &["crash", "--kills=50", "--seed", seed, "--json"]);
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
        let found = ended(3, &["soak", "--duration=5s", "--cycles=1000", "--json"]);
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
