"""effssl's terms and views in a plain PyTorch loop, with your own optimizer, schedule and files.

python examples/plain_loop.py --data digits
python examples/plain_loop.py --data path/to/photos --objective simsiam+rotation
"""

import argparse

import torch

import effssl

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", default="digits")
parser.add_argument("--objective", default="byol+rotation")
parser.add_argument("--encoder", default="small")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--out", default="encoder.pth")
args = parser.parse_args()

data = effssl.open_data(args.data)
objective = effssl.objective(args.objective, args.encoder, data, epochs=args.epochs, batch_size=args.batch_size)
loader = effssl.view_loader(objective, data)
optimizer = torch.optim.SGD(objective.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)

updates, total = 0, args.epochs * loader.steps
for epoch in range(args.epochs):
    losses = []
    for views in loader.epoch(epoch):
        loss, _ = objective(views)
        optimizer.zero_grad()
        loss.backward()
        objective.before_update(updates)  # terms may still change gradients (SwAV)
        optimizer.step()
        updates += 1
        objective.after_update(updates / total)  # updates momentum copies and queues
        losses.append(loss.item())
    print(f"epoch {epoch + 1} of {args.epochs}: loss {sum(losses) / len(losses):.6f}")

torch.save(objective.network.encoder.backbone.state_dict(), args.out)
print(f"{args.out}   next: effssl eval knn {args.out} --encoder {args.encoder} --data {args.data}")
