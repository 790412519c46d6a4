//! Exchanges of buckets on the device: the suite of all spaces, and what is asked of the device.

use super::backend;
use super::buffers::buffer;
use crate::batch::{Batch, Part};
use crate::{BufferBucket, BufferGradient, BufferLayer, WgpuBackend};
use lgreco_train::Error;
use lgreco_train::exchange::{Agreement, Collective, Flight, Moment};
use lgreco_train::testing::exchange::{Bucket, Member, check_space, check_space_damage, check_space_failures, members};
use std::sync::Mutex;
use wgpu::{Buffer, BufferUsages};

const USAGE: BufferUsages = BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);
/// Where a layer's gradient begins in its buffer.
const OFFSET: u64 = 132;

/// Devices that no bucket is on: kernels are compiled once for each.
static IDLE: Mutex<Vec<WgpuBackend>> = Mutex::new(Vec::new());

/// A bucket, its device, and the gradients' buffers.
struct OnDevice {
    backend: Option<WgpuBackend>,
    bucket: BufferBucket,
    members: Vec<Member>,
    buffers: Vec<Buffer>,
}

fn open(members: &[Member], feedback: bool, world: u32) -> OnDevice {
    let idle = IDLE.lock().unwrap().pop();
    let mut backend = idle.or_else(backend).expect("the device there was before");
    let bytes = |member: &Member| (member.shape.elements() * member.dtype.bytes()) as u64;
    let buffers: Vec<Buffer> =
        members.iter().map(|member| buffer(&backend, OFFSET + bytes(member).next_multiple_of(4), USAGE)).collect();
    let layers: Vec<BufferLayer<'_>> = members
        .iter()
        .zip(&buffers)
        .map(|(&Member { index, setting, shape, dtype }, buffer)| {
            let gradient = BufferGradient { buffer, offset: OFFSET, dtype, shape };
            BufferLayer { index, setting, gradient }
        })
        .collect();
    let bucket = BufferBucket::new(&mut backend, &layers, feedback, world).unwrap();
    OnDevice { backend: Some(backend), bucket, members: members.to_vec(), buffers }
}

impl OnDevice {
    fn backend(&mut self) -> &mut WgpuBackend {
        self.backend.as_mut().unwrap()
    }

    fn read(&mut self, buffer: &Buffer, offset: u64, bytes: usize) -> Vec<u8> {
        let part = Part { buffer: buffer.clone(), offset, size: (bytes as u64).next_multiple_of(4) };
        let mut bytes_read = Batch::new(self.backend().gpu()).unwrap().read(&[part]).unwrap();
        bytes_read.truncate(bytes);
        bytes_read
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        if let (Ok(mut idle), Some(backend)) = (IDLE.lock(), self.backend.take()) {
            idle.push(backend);
        }
    }
}

impl Bucket for OnDevice {
    fn exchange(
        &mut self,
        gradients: &[Vec<u8>],
        moment: Moment,
        agreement: Agreement,
        collective: &mut impl Collective,
    ) -> Result<(), Error> {
        let backend = self.backend.as_mut().unwrap();
        for (buffer, bytes) in self.buffers.iter().zip(gradients) {
            let mut padded = bytes.clone();
            // What comes behind the last value of 16 bits is nobody's.
            padded.resize(bytes.len().next_multiple_of(4), 0x5a);
            backend.queue().write_buffer(buffer, OFFSET, &padded);
        }
        let mut flight = Flight::begin(&mut self.bucket.on(backend), moment, agreement, None)?;
        // Made anew for each call, as by who has other buckets on the same device.
        while let Some(request) = flight.next(&mut self.bucket.on(backend))? {
            request.perform(collective)?;
        }
        self.bucket.finish(backend)
    }

    fn means(&mut self) -> Vec<Vec<u8>> {
        let members = self.members.clone();
        let buffers = self.buffers.clone();
        let mean = |(member, buffer): (&Member, &Buffer)| {
            let bytes = member.shape.elements() * member.dtype.bytes();
            let all = self.read(buffer, OFFSET, bytes.next_multiple_of(4));
            assert!(all[bytes..].iter().all(|&byte| byte == 0x5a), "written behind the last value");
            all[..bytes].to_vec()
        };
        members.iter().zip(&buffers).map(mean).collect()
    }

    fn residuals(&mut self) -> Option<Vec<Vec<f32>>> {
        self.bucket.residual(0)?;
        let layers = self.members.len();
        let residual = |layer: usize| {
            let (buffer, offset) = self.bucket.residual(layer).map(|(buffer, at)| (buffer.clone(), at)).unwrap();
            bytemuck::pod_collect_to_vec(&self.read(&buffer, offset, 4 * self.members[layer].shape.elements()))
        };
        Some((0..layers).map(residual).collect())
    }
}

/// Whether there is a device.
fn is_there() -> bool {
    let found = backend();
    let there = found.is_some();
    IDLE.lock().unwrap().extend(found);
    there
}

#[test]
fn means_residuals_and_messages_are_the_hosts() {
    if is_there() {
        check_space(&members(), true, open);
    }
}

#[test]
fn failures_are_the_hosts() {
    if is_there() {
        check_space_failures(open);
    }
}

#[test]
fn damage_is_found_as_by_the_host() {
    if is_there() {
        check_space_damage(1, 6, open);
    }
}
