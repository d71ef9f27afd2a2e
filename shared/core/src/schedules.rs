//! Random schedules of shuttle for the tests, most of them with long pauses: a thread that stands still between two uses of
//! words while another does a whole operation or two is something that an even choice at each step hardly ever shows.

use shuttle::scheduler::{RandomScheduler, Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, Runner};

/// Schedules of each test without `KBTP_SCHEDULES`.
const SCHEDULES: usize = 20_000;
/// How long a thread goes on before another is chosen, on average; each schedule has one of these.
const STRETCHES: [u64; 4] = [1, 8, 32, 128];

/// Runs `run` in as many schedules as are asked for.
pub(crate) fn check(run: fn()) {
    let count =
        std::env::var("KBTP_SCHEDULES").map_or(SCHEDULES, |text| text.parse().expect("a number"));
    let scheduler = Stretches {
        random: RandomScheduler::new(count),
        stretch: 1,
    };
    Runner::new(scheduler, Config::new()).run(run);
}

struct Stretches {
    random: RandomScheduler,
    stretch: u64,
}

impl Scheduler for Stretches {
    fn new_execution(&mut self) -> Option<Schedule> {
        let schedule = self.random.new_execution()?;
        let kind = usize::try_from(self.random.next_u64() % 4).expect("small");
        self.stretch = STRETCHES[kind];
        Some(schedule)
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        yields: bool,
    ) -> Option<TaskId> {
        let goes_on = current.filter(|task| {
            runnable.iter().any(|other| other.id() == *task)
                && !self.random.next_u64().is_multiple_of(self.stretch)
        });
        goes_on.or_else(|| self.random.next_task(runnable, current, yields))
    }

    fn next_u64(&mut self) -> u64 {
        self.random.next_u64()
    }
}
