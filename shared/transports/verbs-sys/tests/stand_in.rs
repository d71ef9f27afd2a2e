//! DEVX over libraries that stand in for those of rdma-core: which functions are called, in which order, with what, and that each
//! owner ends what it owns. A device is not needed; the headers are.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use kbtp_memory::{PageOptions, Region};
    use kbtp_verbs_sys::{Devx, Mlx5, Verbs, VerbsError};
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// Set for the process that has the libraries.
    const INSIDE: &str = "KBTP_STAND_IN";
    const CALLS: &str = "KBTP_CALLS";
    const CLOSED: &str = "KBTP_CLOSED";

    /// The functions that a library must have and the C file leaves out.
    fn left_out(prototypes: &[kbtp_verbs_sys::Prototype], text: &str) -> String {
        let lacking = prototypes
            .iter()
            .filter(|one| !text.contains(&format!("{}(", one.name)));
        let lines = lacking.map(|one| {
            let name = one.name;
            format!("__asm__(\".globl {name}\\n.set {name}, kbtp_never\\n\");\n")
        });
        lines.collect()
    }

    /// Builds a library; what it lacks is there and ends the process if it is called.
    fn build(folder: &Path, define: &str, library: &str, rest: &str) -> Result<(), String> {
        let text = include_str!("stand_in/rdma.c");
        let source = folder.join(format!("{define}.c"));
        fs::write(&source, format!("{text}\n{rest}")).map_err(|e| e.to_string())?;
        let built = Command::new("cc")
            .args([
                "-shared",
                "-fPIC",
                "-Wall",
                "-Werror",
                "-Wno-unused",
                "-D",
                define,
                "-o",
            ])
            .arg(folder.join(library))
            .arg(&source)
            .output()
            .map_err(|error| format!("no C compiler: {error}"))?;
        let why = String::from_utf8_lossy(&built.stderr).into_owned();
        assert!(
            built.status.success() || why.contains("No such file or directory"),
            "{why}"
        );
        built.status.success().then_some(()).ok_or(why)
    }

    fn libraries() -> Result<PathBuf, String> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = folder.join(format!("stand_in_{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let text = include_str!("stand_in/rdma.c");
        build(
            &folder,
            "VERBS",
            Verbs::LIBRARY,
            &left_out(Verbs::PROTOTYPES, text),
        )?;
        build(&folder, "MLX5", Mlx5::LIBRARY, "")?;
        Ok(folder)
    }

    /// Runs `inside` in a process with the libraries. What they were called for.
    fn run(folder: &Path, closed: bool) -> Vec<String> {
        let calls = folder.join(format!("calls-{closed}"));
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "tests::inside", "--nocapture"])
            .env("LD_LIBRARY_PATH", folder)
            .env(CALLS, &calls)
            .env(INSIDE, "1");
        if closed {
            child.env(CLOSED, "1");
        }
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
        let calls = fs::read_to_string(calls).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_call_is_made_once_and_everything_ends() {
        let folder = match libraries() {
            Ok(folder) => folder,
            Err(why) => {
                println!("not tried: {why}");
                let is_ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
                assert!(!is_ci, "{why}");
                return;
            }
        };
        assert_eq!(
            run(&folder, false),
            [
                "open mlx5_7 flags 1",
                "page 1",
                "channel 1",
                "domain",
                "register 4096 access 7: octets that a device reads",
                "command 01 of 16 to 24, context 1",
                "command ee of 16 to 24, context 1",
                "command ff of 16 to 24, context 1",
                "create 1",
                "subscribe 1: 4 octets, 5 .. 16, fd 1",
                "modify 1",
                "query 1",
                "destroy 1",
                "unregister 77",
                "end domain",
                "end channel",
                "end page a1..a8, elsewhere 0",
                "close mlx5_7",
            ]
        );
        assert_eq!(run(&folder, true), ["open mlx5_7 flags 1"]);
        fs::remove_dir_all(folder).unwrap();
    }

    /// The part that is run with the libraries; nothing without them.
    #[test]
    fn inside() {
        if std::env::var_os(INSIDE).is_none() {
            return;
        }
        let error = Devx::open("mlx5_0").unwrap_err().to_string();
        assert!(
            error.contains("mlx5_0: there are other0, mlx5_7"),
            "{error}"
        );
        let error = Devx::open("other0").unwrap_err();
        assert!(matches!(error, VerbsError::NotMlx5 { .. }), "{error}");
        let opened = Devx::open("mlx5_7");
        if std::env::var_os(CLOSED).is_some() {
            let error = opened.unwrap_err();
            assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
            assert_eq!(error.errno(), Some(1));
            return;
        }
        let devx = opened.unwrap();
        let uar = devx.uar().unwrap();
        assert_eq!(uar.number(), 9);
        // Beyond the page, and on no boundary: not written.
        uar.write(0x800, [0xa1, 2, 3, 4, 5, 6, 7, 0xa8]);
        uar.write(4096, [0xff; 8]);
        uar.write(0x804, [0xff; 8]);
        let events = devx.events().unwrap();
        assert_eq!(devx.event_queue(2).unwrap(), 42);
        let domain = devx.domain().unwrap();
        assert_eq!(domain.number(), 0x123);
        let region = Region::anonymous(4096, &PageOptions::default()).unwrap();
        region.write(0, b"octets that a device reads\0").unwrap();
        let memory = devx.register(&region).unwrap();
        assert_eq!(memory.number(), 77);
        commands(&devx);
        let mut answer = [0; 16];
        let object = devx.create(&request(1), &mut answer).unwrap().unwrap();
        assert!(devx.create(&request(0xee), &mut answer).unwrap().is_none());
        assert_eq!(answer[0], 5, "refused, and why");
        let lost = devx.create(&request(0xff), &mut answer).unwrap_err();
        assert_eq!(lost.errno(), Some(12));
        assert_eq!(events.next().unwrap(), None, "it does not wait");
        events
            .subscribe(&object, &[5, 16], 0x0102_0304_0506)
            .unwrap();
        assert_eq!(events.next().unwrap(), Some(0x0102_0304_0506));
        assert_eq!(events.next().unwrap(), None);
        object.modify(&request(2), &mut answer).unwrap();
        object.query(&request(3), &mut answer).unwrap();
        assert_eq!(answer[15], 3);
        // Whoever holds something holds the device.
        drop(devx);
        drop(object);
        drop(memory);
        drop(domain);
        drop(events);
        drop(uar);
    }

    fn request(kind: u8) -> [u8; 16] {
        let mut octets = [0; 16];
        octets[1] = kind;
        octets[15] = kind;
        octets
    }

    fn commands(devx: &Devx) {
        let mut answer = [0; 24];
        devx.command(&request(1), &mut answer).unwrap();
        assert_eq!(answer[23], 1);
        devx.command(&request(0xee), &mut answer).unwrap();
        assert_eq!(answer[0], 5);
        let lost = devx.command(&request(0xff), &mut answer).unwrap_err();
        assert_eq!(lost.errno(), Some(12));
    }
}
