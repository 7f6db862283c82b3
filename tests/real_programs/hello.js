const { createHash } = require('crypto');
const { Worker, isMainThread, parentPort } = require('worker_threads');

if (isMainThread) {
	const worker = new Worker(__filename);
	worker.on('message', (text) => console.log(`Hello from a worker: ${text}`));
	worker.on('exit', () => {
		console.log(createHash('sha256').update('node').digest('hex'));
		process.exitCode = 6;
	});
} else {
	let sum = 0;
	for (let i = 0; i < 100000; i++)
		sum = (sum * 31 + i) % 1000003;
	parentPort.postMessage(sum);
}
