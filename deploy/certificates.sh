#!/usr/bin/env bash
# Makes an authority of one's own and a certificate of an edge: deploy/certificates.sh FOLDER NAME_OR_IP [NAME_OR_IP …]
# A second call with the same folder keeps the authority and makes another certificate. Valid for a year.
set -euo pipefail
umask 077
test $# -ge 2 || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
folder=$1; shift
mkdir -p "$folder"
if [[ ! -e $folder/authority.key ]]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj '/CN=covspec authority' \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign \
        -keyout "$folder/authority.key" -out "$folder/authority.pem" 2>/dev/null
fi
names=()
for name in "$@"; do
    [[ $name =~ ^[0-9.]+$|: ]] && names+=("IP:$name") || names+=("DNS:$name")
done
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" \
    -keyout "$folder/$1.key" -out "$folder/$1.csr" 2>/dev/null
openssl x509 -req -in "$folder/$1.csr" -CA "$folder/authority.pem" -CAkey "$folder/authority.key" -CAcreateserial \
    -days 365 -out "$folder/$1.pem" 2>/dev/null -extfile <(
        printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$(IFS=,; echo "${names[*]}")")
rm "$folder/$1.csr"
echo "edge:    --ssl-certfile $folder/$1.pem --ssl-keyfile $folder/$1.key"
echo "devices: --ssl-ca-certs $folder/authority.pem"
