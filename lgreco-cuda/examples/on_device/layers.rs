//! Measures error-table rows and payloads of one layer.

use super::*;
use lgreco::backend::{Backend as _, Job, Portable};
use lgreco::compress::Compressor;
use lgreco::rng::Stream;
use lgreco_cuda::DeviceJob;

/// The norm of the difference of two matrices, relative to the norm of the first.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let norm: f64 = a.iter().map(|&a| f64::from(a).powi(2)).sum();
    let apart: f64 = a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
    (apart / norm).sqrt()
}

impl Bench {
    pub(super) fn rows(&mut self, name: &str, candidates: Candidates<'_>) -> Outcome<()> {
        let (gradient, stream) = (self.on_device()?, Stream::default());
        let jobs = [DeviceJob { gradient, candidates, stream }; CALLS];
        let mut rows = vec![f64::NAN; CALLS * candidates.len()];
        let here = host_seconds(|| Ok(self.backend.measure_device(&jobs, &mut rows)?))? / CALLS as f64;
        let cpu = self.check_rows(name, self.shape, candidates, &rows)?;
        self.line(&format!("row of {name}"), here, cpu);
        Ok(())
    }

    /// Asserts that the rows equal those that the CPU computes from the first values. Returns the CPU's seconds.
    pub(super) fn check_rows(
        &self,
        name: &str,
        shape: Shape,
        candidates: Candidates<'_>,
        rows: &[f64],
    ) -> Outcome<f64> {
        let job = Job { gradient: self.host(shape)?, candidates, stream: Stream::default() };
        let (mut expected, mut workspace) = (vec![f64::NAN; candidates.len()], vec![0; Portable.workspace_len(&[job])]);
        let start = Instant::now();
        Portable.measure(&[job], &mut workspace, &mut expected)?;
        let cpu = start.elapsed().as_secs_f64();
        // At full rank, PowerSGD's only error is rounding.
        let rounding = 1e-10 * expected[0];
        for row in rows.chunks(candidates.len()) {
            let agree = row.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= ROWS * b + rounding);
            assert!(agree, "{name}: {row:?}, not {expected:?}");
        }
        Ok(cpu)
    }

    pub(super) fn payloads(&mut self, name: &str, setting: Setting) -> Outcome<()> {
        let (gradient, clock) = (self.on_device()?, self.clock);
        let len = setting.payload_len(self.shape, self.dtype)?;
        let payload = Memory::new(len.next_multiple_of(4))?;
        let here = clock.seconds(CALLS, || {
            // SAFETY: the address is valid for a payload.
            unsafe { self.backend.encode_to_device(&setting, &gradient, Stream::default(), payload.at()) }?;
            Ok(())
        })?;
        self.backend.check()?;
        let host = self.host(self.shape)?;
        let mut workspace = vec![0; setting.encode_workspace_len(self.shape, self.dtype)];
        let (mut expected, mut found) = (vec![0; len], vec![0u8; len]);
        let start = Instant::now();
        setting.encode(&host, Stream::default(), &mut workspace, &mut expected)?;
        let cpu = start.elapsed().as_secs_f64();
        clock.download(payload.at(), &mut found)?;
        let of_core = |payload: &[u8]| -> Outcome<Vec<f32>> {
            let mut values = vec![0.0f32; self.values.len()];
            lgreco::compress::decode(payload, &mut values)?;
            Ok(values)
        };
        match setting {
            Setting::PowerSgd(_) => {
                let apart = distance(&of_core(&expected)?, &of_core(&found)?);
                assert!(apart <= NORM, "{name}: the payload, by {apart} of the norm");
            }
            _ => assert!(found == expected, "{name}: the payload"),
        }
        self.line(&format!("encode {name}"), here, cpu);
        if self.dtype != Dtype::F32 {
            // Payloads decode to f32 for gradients of any type, so decoding is measured only for f32 gradients.
            return Ok(());
        }

        let here = clock.seconds(CALLS, || {
            // SAFETY: the first address holds an encoded payload. The second address is valid for the decoded values.
            Ok(unsafe { self.backend.decode_on_device(&setting, self.shape, payload.at(), self.other.at()) }?)
        })?;
        self.backend.check()?;
        let (mut values, mut decoded) = (vec![0.0f32; self.values.len()], vec![0.0f32; self.values.len()]);
        let start = Instant::now();
        lgreco::compress::decode(&found, &mut values)?;
        let cpu = start.elapsed().as_secs_f64();
        clock.download(self.other.at(), &mut decoded)?;
        assert!(decoded == values, "{name}: the values");
        self.line(&format!("decode {name}"), here, cpu);
        Ok(())
    }
}
