//! A guest that runs: started, told commands, ended.
//!
//! It is emulated without help of the host's processor: the guest is for what is right, not for what is fast, and so it
//! starts on any machine, in containers and in other guests.

use crate::cpio::Archive;
use crate::driver::Deadline;
use crate::image::Image;
use nix::poll::{PollFd, PollFlags, poll};
use std::error::Error;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The guest's first process.
const INIT: &str = include_str!("../guest/init");
/// How long a boot may take: ten times what it does on a busy machine of two cores.
const BOOT: Duration = Duration::from_mins(3);
/// Short commands.
const SOON: Duration = Duration::from_secs(30);
/// The line after a command's output.
const STATUS: &str = "\nkbtp-status ";

/// The guest's address on the network that QEMU makes for it, and the host's loopback as it sees it.
pub const ADDRESS: &str = "10.0.2.15";
/// The host's 127.0.0.1.
pub const HOST: &str = "10.0.2.2";
/// Address of the rxe device of a guest alone.
pub const RXE_ADDRESS: &str = "10.77.0.1";

/// How a guest is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What its console's log is called.
    pub name: String,
    /// Files that lie in `/job`, where commands run. Programs are stripped of what debuggers need.
    pub files: Vec<PathBuf>,
    /// What its network device is connected to, as QEMU's `-netdev` has it, with the id `n0`.
    pub net: String,
    /// The last octet of the device's address.
    pub mac: u8,
    /// Processors.
    pub processors: u8,
    /// Memory in MiB.
    pub memory_mib: u32,
}

impl Setup {
    /// A guest of two processors with the network that QEMU makes.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            files: Vec::new(),
            net: "user,id=n0".to_owned(),
            mac: 1,
            processors: 2,
            memory_mib: 1024,
        }
    }
}

/// What a command came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ran {
    /// Its exit status.
    pub status: i32,
    /// What it said, on both outputs.
    pub said: String,
}

/// A running guest. It ends when it is dropped.
#[derive(Debug)]
pub struct Guest {
    machine: Child,
    commands: ChildStdin,
    answers: ChildStdout,
    /// What has come and was not taken.
    heard: Vec<u8>,
    /// Commands begun.
    begun: u32,
    console: PathBuf,
    folder: PathBuf,
}

impl Guest {
    /// Starts a guest in `folder`, which takes its files while it runs, and its console's log for longer.
    ///
    /// # Errors
    /// It does not come up; the console is in the error.
    pub fn boot(image: &Image, folder: &Path, setup: &Setup) -> Outcome<Self> {
        let own = folder.join(format!("run-{}-{}", std::process::id(), setup.name));
        fs::create_dir_all(&own)?;
        let console = folder.join(format!("console-{}.log", setup.name));
        let root = own.join("root.cpio");
        let files = job(&setup.files)?;
        let mut whole = fs::read(&image.root)?;
        whole.extend_from_slice(&files);
        fs::write(&root, whole)?;
        fs::write(&console, "")?;
        let mut machine = Command::new("qemu-system-x86_64");
        machine
            .args(["-M", "pc", "-accel", "tcg,thread=multi", "-cpu", "max"])
            .args(["-smp", &setup.processors.to_string()])
            .args(["-m", &setup.memory_mib.to_string()])
            .args(["-nodefaults", "-display", "none", "-no-reboot"])
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .args(["-chardev", "stdio,id=commands,signal=off"])
            .args(["-serial", "chardev:commands", "-kernel"])
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&root)
            .arg("-append")
            .arg(
                "console=ttyS0 quiet panic=-1 oops=panic mitigations=off tsc=reliable net.ifnames=0",
            )
            .args(["-netdev", &setup.net, "-device"])
            .arg(format!(
                "virtio-net-pci,netdev=n0,mac=52:54:00:00:00:{:02x},romfile=",
                setup.mac
            ))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(own.join("qemu"))?);
        let mut machine = machine
            .spawn()
            .map_err(|e| format!("qemu-system-x86_64: {e}"))?;
        let commands = machine.stdin.take().ok_or("no pipe")?;
        let answers = machine.stdout.take().ok_or("no pipe")?;
        let mut guest = Self {
            machine,
            commands,
            answers,
            heard: Vec::new(),
            begun: 0,
            console,
            folder: own,
        };
        let ready = guest.until("kbtp-ready ", Deadline::after(BOOT));
        let line = ready.and_then(|_| guest.until("\n", Deadline::after(SOON)));
        line.map_err(|e| guest.blame(&e.to_string()))?;
        Ok(guest)
    }

    /// siw on the network device and rxe on a device of its own, so that an address chooses between them: `eth0` with
    /// [`ADDRESS`] has `siw_eth0`, `rx0` with [`RXE_ADDRESS`] has `rxe_rx0`. `siw` is which build of siw.
    ///
    /// # Errors
    /// A device does not come up.
    pub fn devices(&mut self, siw: &str) -> Outcome<()> {
        for command in [
            &format!("ip addr add {ADDRESS}/24 dev eth0"),
            "ip link set eth0 up",
            &format!("ip route add default via {HOST}"),
            &format!("insmod /lib/siw/{siw}.ko"),
            "rdma link add siw_eth0 type siw netdev eth0",
            "ip link add rx0 type dummy",
            &format!("ip addr add {RXE_ADDRESS}/24 dev rx0"),
            "ip link set rx0 up",
            "rdma link add rxe_rx0 type rxe netdev rx0",
        ] {
            self.must(command, SOON)?;
        }
        Ok(())
    }

    /// Runs a shell command to its end.
    ///
    /// # Errors
    /// The guest is gone, or `within` is over: the guest is of no use then.
    pub fn run(&mut self, command: &str, within: Duration) -> Outcome<Ran> {
        self.begin(command)?;
        self.end(within)
    }

    /// The same for a command that must succeed. What it said.
    ///
    /// # Errors
    /// As for [`run`](Self::run), and if it did not succeed.
    pub fn must(&mut self, command: &str, within: Duration) -> Outcome<String> {
        let ran = self.run(command, within)?;
        if ran.status == 0 {
            return Ok(ran.said);
        }
        let what = format!("{command:?} ended with {}:\n{}", ran.status, ran.said);
        Err(self.blame(&what).into())
    }

    /// Begins a shell command: [`end`](Self::end) waits for it. One at a time.
    ///
    /// # Errors
    /// The guest is gone.
    pub fn begin(&mut self, command: &str) -> Outcome<()> {
        debug_assert!(!command.contains('\n'), "one line");
        self.begun += 1;
        let line = format!("{command}\n");
        let sent = self.commands.write_all(line.as_bytes());
        Ok(sent.map_err(|e| self.blame(&format!("{command:?}: {e}")))?)
    }

    /// Waits for the command that was begun.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn end(&mut self, within: Duration) -> Outcome<Ran> {
        let deadline = Deadline::after(within);
        loop {
            let said = self.until(STATUS, deadline);
            let said = said.map_err(|e| self.blame(&e.to_string()))?;
            let line = self.until("\n", deadline)?;
            let (number, status) = line.split_once(' ').ok_or("a status without a number")?;
            // An older one is of a command that was not waited for to its end.
            if number.parse() == Ok(self.begun) {
                let status = status.trim().parse()?;
                return Ok(Ran { status, said });
            }
        }
    }

    /// What came until `mark`, which is taken too.
    fn until(&mut self, mark: &str, deadline: Deadline) -> Outcome<String> {
        let mark = mark.as_bytes();
        let mut looked = 0;
        loop {
            let found = self.heard.get(looked..).and_then(|rest| {
                let at = rest.windows(mark.len()).position(|w| w == mark);
                at.map(|at| at + looked)
            });
            if let Some(at) = found {
                let rest = self.heard.split_off(at + mark.len());
                let taken = std::mem::replace(&mut self.heard, rest);
                let text = taken.get(..at).unwrap_or_default();
                return Ok(String::from_utf8_lossy(text).into_owned());
            }
            looked = self.heard.len().saturating_sub(mark.len());
            self.hear(deadline)?;
        }
    }

    /// Waits for octets.
    fn hear(&mut self, deadline: Deadline) -> Outcome<()> {
        let mut fds = [PollFd::new(self.answers.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, deadline.left()) {
            Err(nix::errno::Errno::EINTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
            Ok(0) => {
                let heard = String::from_utf8_lossy(&self.heard).into_owned();
                return Err(format!("the guest does not answer in time; so far: {heard:?}").into());
            }
            Ok(_) => {}
        }
        let mut octets = [0; 4096];
        match self.answers.read(&mut octets) {
            Ok(0) => Err("the guest has ended".into()),
            Ok(n) => {
                self.heard
                    .extend_from_slice(octets.get(..n).unwrap_or_default());
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// What the console and QEMU said so far.
    #[must_use]
    pub fn console(&self) -> String {
        let read = |path: &Path| {
            let octets = fs::read(path).unwrap_or_default();
            String::from_utf8_lossy(&octets).into_owned()
        };
        read(&self.folder.join("qemu")) + &read(&self.console)
    }

    /// `what` with the console.
    fn blame(&self, what: &str) -> String {
        format!(
            "{what}\n--- the guest's console ({}):\n{}---",
            self.console.display(),
            self.console()
        )
    }

    /// Kills the machine, as a failure of power does.
    ///
    /// # Errors
    /// The system refuses.
    pub fn kill(&mut self) -> io::Result<()> {
        self.machine.kill()?;
        self.machine.wait()?;
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may be gone already; and files that stay are removed with the folder.
        let _gone = self.kill();
        let _left = fs::remove_dir_all(&self.folder);
    }
}

/// An archive with the first process, and with `files` in `/job`.
fn job(files: &[PathBuf]) -> Outcome<Vec<u8>> {
    let mut archive = Archive::new(Vec::new());
    archive.file("init", true, INIT.as_bytes())?;
    archive.folder("job")?;
    for file in files {
        let content = fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let program = content.starts_with(b"\x7fELF") || content.starts_with(b"#!");
        let name = file.file_name().ok_or("a file without a name")?;
        let content = if content.starts_with(b"\x7fELF") {
            stripped(file)?
        } else {
            content
        };
        archive.file(
            &format!("job/{}", name.to_string_lossy()),
            program,
            &content,
        )?;
    }
    Ok(archive.finish()?)
}

/// A program without what only debuggers need, most of it.
fn stripped(file: &Path) -> Outcome<Vec<u8>> {
    let to = std::env::temp_dir().join(format!("kbtp-stripped-{}", std::process::id()));
    let ran = Command::new("strip")
        .arg("--strip-debug")
        .arg("-o")
        .args([&to, file])
        .status()
        .map_err(|e| format!("strip: {e}"))?;
    if !ran.success() {
        return Err(format!("strip cannot read {}", file.display()).into());
    }
    let content = fs::read(&to)?;
    fs::remove_file(to)?;
    Ok(content)
}
